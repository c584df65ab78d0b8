use super::Draft;

pub(super) fn protected(draft: &mut Draft<'_>) {
    let _ = draft;
}

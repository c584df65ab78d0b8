use super::Draft;

pub(super) fn stuck(draft: &mut Draft<'_>) {
    let _ = draft;
}

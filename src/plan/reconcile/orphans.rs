use super::Draft;

pub(super) fn orphans(draft: &mut Draft<'_>) {
    let _ = draft;
}

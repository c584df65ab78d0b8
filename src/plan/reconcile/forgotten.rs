use super::Draft;

pub(super) fn forgotten(draft: &mut Draft<'_>) {
    let _ = draft;
}

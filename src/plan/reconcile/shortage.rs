use super::Draft;

pub(super) fn shortages(draft: &mut Draft<'_>) {
    let _ = draft;
}

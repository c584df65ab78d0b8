use super::Draft;

pub(super) fn blocks(draft: &mut Draft<'_>) {
    let _ = draft;
}

use super::Draft;

pub(super) fn statics(draft: &mut Draft<'_>) {
    let _ = draft;
}

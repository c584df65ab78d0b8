use super::Draft;

pub(super) fn unhealthy(draft: &mut Draft<'_>) {
    let _ = draft;
}

use super::Draft;

pub(super) fn failing_checks(draft: &mut Draft<'_>) {
    let _ = draft;
}

use super::Draft;

pub(super) fn stopped(draft: &mut Draft<'_>) {
    let _ = draft;
}

pub(super) fn inactive_partitions(draft: &mut Draft<'_>) {
    let _ = draft;
}

use super::Draft;

pub(super) fn powering_down(draft: &mut Draft<'_>) {
    let _ = draft;
}

pub(super) fn gone(draft: &mut Draft<'_>) {
    let _ = draft;
}

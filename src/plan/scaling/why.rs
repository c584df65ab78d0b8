//! The failures that this decision gives itself, for what EC2 has no word for. EC2's own code is kept wherever there is one.

use crate::model::failure::{ErrorClass, Failure, along_with, codes};

/// ParallelCluster's word for "nothing at all came, and no code with it" (aws-facts C.4): EC2's own code for no capacity.
const NONE_CAME: &str = "InsufficientInstanceCapacity";

/// EC2 gave a code, or nothing at all: not merely fewer than asked.
pub(super) fn has_a_code(failure: &Failure) -> bool {
    failure.code != codes::LIMITED
}

/// Why an order for `asked` nodes of `group` brought only `got`, where the answer itself has `failure`.
pub(super) fn short(failure: Option<Failure>, group: &str, got: usize, asked: usize, by_batch: bool) -> Failure {
    let failure = failure.unwrap_or_else(|| Failure {
        code: codes::LIMITED.to_owned(),
        class: ErrorClass::Capacity,
        sentence: format!("EC2 launched {got} of {asked} instances for group {group}"),
        request_id: None,
    });
    if got == 0 && !by_batch && !has_a_code(&failure) {
        return Failure { code: NONE_CAME.to_owned(), ..failure };
    }
    failure
}

/// For a node whose unit found nothing in the pool.
pub(super) fn nothing_left() -> Failure {
    Failure {
        code: NONE_CAME.to_owned(),
        class: ErrorClass::Capacity,
        sentence: "EC2 launched fewer instances than asked and none was left for the node".to_owned(),
        request_id: None,
    }
}

/// For a node of `unit`, which must be whole, whose own group brought `got` of the `need` instances.
pub(super) fn part_of(unit: &str, group: &str, got: usize, need: usize) -> Failure {
    Failure {
        code: codes::LIMITED.to_owned(),
        class: ErrorClass::Capacity,
        sentence: format!("{unit} needs all of its nodes, and EC2 launched only {got} of {need} instances for group {group}"),
        request_id: None,
    }
}

/// For a node of `unit`, which must be whole, of the same group as `node`, which got no instance for `cause`.
pub(super) fn same_group(unit: &str, node: &str, cause: &Failure, some: bool) -> Failure {
    Failure { class: cause.class, ..dragged_along(unit, node, cause, some) }
}

/// For a node of `unit`, which must be whole, of a group that is not to blame and earns no back-off: `node` of another group got
/// no instance for `cause`. `some` = the unit got a part of its instances.
pub(super) fn dragged_along(unit: &str, node: &str, cause: &Failure, some: bool) -> Failure {
    Failure {
        code: if some { codes::LIMITED.to_owned() } else { cause.code.clone() },
        class: ErrorClass::Other,
        sentence: along_with(unit, node, cause),
        request_id: cause.request_id.clone(),
    }
}

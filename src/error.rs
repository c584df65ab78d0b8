//! An error with all its causes on one line.

use std::error::Error;

/// `outer: cause: cause of the cause`; a cause whose text is already part of the line is not repeated.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let part = cause.to_string();
        if !part.is_empty() && !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read it")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn all_causes_once() {
        let error = Outer(std::io::Error::other("disk on fire"));
        assert_eq!(chain(&error), "cannot read it: disk on fire");
    }
}

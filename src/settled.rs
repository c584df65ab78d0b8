//! Files that somebody else empties and writes again in place: read until they are whole, or for half a second. A reading in, the last one
//! out.

use std::time::Duration;

const READINGS: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(50);

/// What the callers do between two readings.
pub(crate) fn pause() {
    std::thread::sleep(BETWEEN);
}

/// Reads again, with a `pause` before each time, as long as the answer is one of a file that is being written; the last answer counts.
pub(crate) fn settled<T>(mut read: impl FnMut() -> T, is_being_written: impl Fn(&T) -> bool, mut pause: impl FnMut()) -> T {
    for _ in 1..READINGS {
        let answer = read();
        if !is_being_written(&answer) {
            return answer;
        }
        pause();
    }
    read()
}

//! Small helps for messages: the nearest known word, a list of choices. Text in, text out.

/// The word of `known` that `written` most likely stands for: at most a third of its letters differ, or one begins with the other.
pub(crate) fn nearest<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let plain = |word: &str| word.to_lowercase().replace('-', "_");
    let written = plain(written);
    let begins = |word: &str| word.len().min(written.len()) >= 3 && (word.starts_with(&written) || written.starts_with(word));
    known
        .into_iter()
        .map(|word| (distance(&written, &plain(word)), word))
        .filter(|(distance, word)| *distance <= (word.len() / 3).max(1) || begins(&plain(word)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Letters to change, add, drop or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let same = usize::from(a[i - 1] != b[j - 1]);
                let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + same);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

/// `"a", "b" or "c"`
pub(crate) fn choices<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("{word:?}")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} or {last}", head.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word() {
        let known = ["batch_size", "strategy", "nodes", "name"];
        for (written, expected) in [
            ("batchsize", Some("batch_size")),
            ("batch-size", Some("batch_size")),
            ("startegy", Some("strategy")),
            ("Node", Some("nodes")),
            ("strat", Some("strategy")),
            ("colour", None),
            ("", None),
            ("BatchSize", Some("batch_size")),
        ] {
            assert_eq!(nearest(written, known), expected, "{written}");
        }
        // Known words may have capitals: the parameters of EC2's API have.
        assert_eq!(nearest("TagSpecification", ["Type", "TagSpecifications"]), Some("TagSpecifications"));
    }

    #[test]
    fn a_list_of_choices() {
        assert_eq!(choices(["a", "b", "c"]), r#""a", "b" or "c""#);
        assert_eq!(choices(["a"]), r#""a""#);
    }
}

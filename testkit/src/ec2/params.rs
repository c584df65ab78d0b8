//! Form parameters of the EC2 query protocol: `Filter.1.Value.2=x` and the like. Text in, lookups out.

use super::xml::ApiError;

/// Decoded parameters in the order they were sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl Params {
    pub(crate) fn parse(body: &[u8]) -> Self {
        Params(form_urlencoded::parse(body).map(|(k, v)| (k.into_owned(), v.into_owned())).collect())
    }

    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    pub(crate) fn require(&self, key: &str) -> Result<&str, ApiError> {
        self.get(key).ok_or_else(|| ApiError::client("MissingParameter", format!("The request must contain the parameter {key}")))
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.get(key) == Some("true")
    }

    pub(crate) fn number(&self, key: &str) -> Result<Option<u32>, ApiError> {
        self.get(key)
            .map(|text| {
                text.parse().map_err(|_| ApiError::client("InvalidParameterValue", format!("Invalid value '{text}' for {key}.")))
            })
            .transpose()
    }

    /// Values of `prefix.1`, `prefix.2`, … in the order of their numbers.
    pub(crate) fn list(&self, prefix: &str) -> Vec<&str> {
        let mut found: Vec<(u32, &str)> = self.0.iter().filter_map(|(k, v)| Some((index(k, prefix)?, v.as_str()))).collect();
        found.sort_by_key(|(n, _)| *n);
        found.into_iter().map(|(_, v)| v).collect()
    }

    /// The parameters below `prefix.1.`, `prefix.2.`, … with that prefix taken off, in the order of their numbers.
    pub(crate) fn groups(&self, prefix: &str) -> Vec<Params> {
        let mut groups = std::collections::BTreeMap::<u32, Params>::new();
        for (key, value) in &self.0 {
            let Some((number, rest)) = key.strip_prefix(prefix).and_then(|k| k.strip_prefix('.')).and_then(|k| k.split_once('.'))
            else {
                continue;
            };
            if let Ok(number) = number.parse() {
                groups.entry(number).or_default().0.push((rest.to_owned(), value.clone()));
            }
        }
        groups.into_values().collect()
    }

    /// Key and value of `prefix.N.Key`, `prefix.N.Value`.
    pub(crate) fn tags(&self, prefix: &str) -> Vec<(String, String)> {
        let tag = |g: &Params| Some((g.get("Key")?.to_owned(), g.get("Value").unwrap_or_default().to_owned()));
        self.groups(prefix).iter().filter_map(tag).collect()
    }

    /// The request as its idempotency sees it: everything but the token.
    pub(crate) fn fingerprint(&self) -> String {
        let mut pairs: Vec<_> = self.0.iter().filter(|(k, _)| k != "ClientToken").collect();
        pairs.sort();
        pairs.iter().map(|(k, v)| format!("{k}={v}\n")).collect()
    }
}

fn index(key: &str, prefix: &str) -> Option<u32> {
    key.strip_prefix(prefix)?.strip_prefix('.')?.parse().ok()
}

/// Shell-like match with `*` and `?`, as EC2 filters have it.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    if !pattern.contains(['*', '?']) {
        return pattern == text;
    }
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t, mut retry) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match retry {
                Some((star, from)) => {
                    (p, t) = (star + 1, from + 1);
                    retry = Some((star, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_ordered_by_number_not_by_text() {
        let params = Params::parse(b"InstanceId.10=j&InstanceId.2=b&InstanceId.1=a%20b&InstanceIdX.1=no");
        assert_eq!(params.list("InstanceId"), ["a b", "b", "j"]);
    }

    #[test]
    fn groups_nest() {
        let params = Params::parse(b"Filter.1.Name=tag:x&Filter.1.Value.1=1&Filter.1.Value.2=2&Filter.2.Name=n");
        let groups = params.groups("Filter");
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].get("Name"), Some("tag:x"));
        assert_eq!(groups[0].list("Value"), ["1", "2"]);
    }

    #[test]
    fn wildcards() {
        assert!(glob("*", "") && glob("c5.*", "c5.large") && glob("a?c*e", "abcde") && glob("*b*b", "abab"));
        assert!(!glob("c5.*", "c6.large") && !glob("a?", "a") && !glob("a*b", "abc") && !glob("", "a"));
    }

    #[test]
    fn the_token_is_no_part_of_the_fingerprint() {
        let one = Params::parse(b"Action=RunInstances&ClientToken=a&MinCount=1").fingerprint();
        let two = Params::parse(b"MinCount=1&Action=RunInstances&ClientToken=b").fingerprint();
        assert_eq!(one, two);
        assert_ne!(one, Params::parse(b"Action=RunInstances&MinCount=2").fingerprint());
    }
}

//! DynamoDB's expressions: the text of a condition or an update with its names and values in; what it says of an item, or makes of
//! it, out.
//!
//! Conditions: `attribute_exists`, `attribute_not_exists`, `begins_with`, `contains`, `size`, comparisons, `BETWEEN`, `IN`, `AND`,
//! `OR`, `NOT`, parentheses. Updates: `SET` with `+`, `-` and `if_not_exists`, `REMOVE`, `ADD` of numbers.

use std::cmp::Ordering;

use serde_json::{Value, json};

use super::Failure;
use super::table::{Item, Part, number};

/// An expression being read for one item.
pub(crate) struct Reader<'a> {
    tokens: Vec<String>,
    at: usize,
    names: &'a Value,
    values: &'a Value,
    item: &'a Item,
}

/// Does the condition hold? `input` brings the names and values.
pub(crate) fn holds(text: &str, input: &Value, item: &Item) -> Result<bool, Failure> {
    let mut reader = Reader::new(text, input, item);
    let holds = reader.any_of()?;
    match reader.peek() {
        "" => Ok(holds),
        rest => Err(reader.wrong(rest)),
    }
}

/// The item after the update.
pub(crate) fn update(text: &str, input: &Value, item: &Item) -> Result<Item, Failure> {
    let mut reader = Reader::new(text, input, item);
    let mut changed = item.clone();
    while !reader.peek().is_empty() {
        let section = reader.next().to_ascii_uppercase();
        loop {
            let path = reader.path()?;
            match section.as_str() {
                "SET" => {
                    reader.expect("=")?;
                    let value = reader.sum()?;
                    set(&mut changed, &path, Some(value))?;
                }
                "REMOVE" => set(&mut changed, &path, None)?,
                "ADD" => {
                    let more = reader.operand()?.unwrap_or(Value::Null);
                    let old = find(item, &path).cloned().unwrap_or_else(|| json!({"N": "0"}));
                    set(&mut changed, &path, Some(plus(&old, &more, 1.0)?))?;
                }
                other => return Err(reader.wrong(other)),
            }
            if reader.peek() != "," {
                break;
            }
            reader.next();
        }
    }
    Ok(changed)
}

impl<'a> Reader<'a> {
    fn new(text: &str, input: &'a Value, item: &'a Item) -> Self {
        let (names, values) = (&input["ExpressionAttributeNames"], &input["ExpressionAttributeValues"]);
        Reader { tokens: tokens(text), at: 0, names, values, item }
    }

    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    fn next(&mut self) -> String {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned().unwrap_or_default()
    }

    /// Takes the word if it is next, in any case.
    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.peek().eq_ignore_ascii_case(word);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, word: &str) -> Result<(), Failure> {
        if self.takes(word) { Ok(()) } else { Err(self.wrong(self.peek())) }
    }

    fn wrong(&self, token: &str) -> Failure {
        Failure::validation(format!("Invalid expression: Syntax error; token: \"{token}\", near: \"{}\"", self.tokens.join(" ")))
    }

    fn any_of(&mut self) -> Result<bool, Failure> {
        let mut holds = self.all_of()?;
        while self.takes("OR") {
            holds |= self.all_of()?;
        }
        Ok(holds)
    }

    fn all_of(&mut self) -> Result<bool, Failure> {
        let mut holds = self.one()?;
        while self.takes("AND") {
            holds &= self.one()?;
        }
        Ok(holds)
    }

    fn one(&mut self) -> Result<bool, Failure> {
        if self.takes("NOT") {
            return Ok(!self.one()?);
        }
        if self.takes("(") {
            let holds = self.any_of()?;
            self.expect(")")?;
            return Ok(holds);
        }
        match self.peek() {
            "attribute_exists" | "attribute_not_exists" => {
                let wanted = self.next() == "attribute_exists";
                self.expect("(")?;
                let path = self.path()?;
                self.expect(")")?;
                Ok(find(self.item, &path).is_some() == wanted)
            }
            "begins_with" | "contains" => {
                let function = self.next();
                self.expect("(")?;
                let whole = self.operand()?;
                self.expect(",")?;
                let part = self.operand()?;
                self.expect(")")?;
                Ok(text_holds(&function, whole.as_ref(), part.as_ref()))
            }
            _ => self.comparison(),
        }
    }

    fn comparison(&mut self) -> Result<bool, Failure> {
        let left = self.operand()?;
        if self.takes("BETWEEN") {
            let low = self.operand()?;
            self.expect("AND")?;
            let high = self.operand()?;
            let at_least = compare(&left, &low).is_some_and(Ordering::is_ge);
            return Ok(at_least && compare(&left, &high).is_some_and(Ordering::is_le));
        }
        if self.takes("IN") {
            self.expect("(")?;
            let mut found = left.is_some() && self.operand()? == left;
            while self.takes(",") {
                found |= left.is_some() && self.operand()? == left;
            }
            self.expect(")")?;
            return Ok(found);
        }
        let operator = self.next();
        let right = self.operand()?;
        match operator.as_str() {
            "=" => Ok(left.is_some() && equal(&left, &right)),
            "<>" => Ok(!equal(&left, &right)),
            "<" => Ok(compare(&left, &right).is_some_and(Ordering::is_lt)),
            "<=" => Ok(compare(&left, &right).is_some_and(Ordering::is_le)),
            ">" => Ok(compare(&left, &right).is_some_and(Ordering::is_gt)),
            ">=" => Ok(compare(&left, &right).is_some_and(Ordering::is_ge)),
            other => Err(self.wrong(other)),
        }
    }

    /// A value, a path or a function of one; `None` where the item has nothing.
    fn operand(&mut self) -> Result<Option<Value>, Failure> {
        if self.peek().starts_with(':') {
            let name = self.next();
            let value = self.values.get(&name).cloned();
            let unknown =
                || Failure::validation(format!("An expression attribute value used in expression is not defined: {name}"));
            return value.map(Some).ok_or_else(unknown);
        }
        if self.takes("size") {
            self.expect("(")?;
            let of = self.operand()?;
            self.expect(")")?;
            return Ok(of.as_ref().and_then(size).map(|size| json!({ "N": size.to_string() })));
        }
        if self.takes("if_not_exists") {
            self.expect("(")?;
            let path = self.path()?;
            self.expect(",")?;
            let otherwise = self.operand()?;
            self.expect(")")?;
            return Ok(find(self.item, &path).cloned().or(otherwise));
        }
        let path = self.path()?;
        Ok(find(self.item, &path).cloned())
    }

    /// `operand`, `operand + operand`, `operand - operand`.
    fn sum(&mut self) -> Result<Value, Failure> {
        let missing = || Failure::validation("The provided expression refers to an attribute that does not exist in the item");
        let left = self.operand()?.ok_or_else(missing)?;
        let sign = match self.peek() {
            "+" => 1.0,
            "-" => -1.0,
            _ => return Ok(left),
        };
        self.next();
        let right = self.operand()?.ok_or_else(missing)?;
        plus(&left, &right, sign)
    }

    fn path(&mut self) -> Result<Vec<String>, Failure> {
        let text = self.next();
        if !text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '#' | '_')) {
            return Err(self.wrong(&text));
        }
        let name = |part: &str| match part.starts_with('#') {
            false => Ok(part.to_owned()),
            true => self.names.get(part).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| {
                Failure::validation(format!("An expression attribute name used in the document path is not defined: {part}"))
            }),
        };
        text.split('.').map(name).collect()
    }
}

fn tokens(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut word = String::new();
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '#' | ':' | '.') {
            word.push(c);
            continue;
        }
        found.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
        let pair = match (found.last().map(String::as_str), c) {
            (Some("<"), '=' | '>') | (Some(">"), '=') => found.pop(),
            _ => None,
        };
        if !c.is_whitespace() {
            found.push(format!("{}{c}", pair.unwrap_or_default()));
        }
    }
    found.extend((!word.is_empty()).then_some(word));
    found
}

fn find<'a>(item: &'a Item, path: &[String]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(item.get(first)?, |value, name| value.get("M")?.get(name))
}

/// Sets or removes what the path names; the maps on its way must be there.
fn set(item: &mut Item, path: &[String], value: Option<Value>) -> Result<(), Failure> {
    let invalid = || Failure::validation("The document path provided in the update expression is invalid for update");
    let (last, way) = path.split_last().ok_or_else(invalid)?;
    let mut map = item;
    for name in way {
        map = map.get_mut(name).and_then(|value| value.get_mut("M")).and_then(Value::as_object_mut).ok_or_else(invalid)?;
    }
    match value {
        Some(value) => map.insert(last.clone(), value),
        None => map.remove(last),
    };
    Ok(())
}

fn plus(left: &Value, right: &Value, sign: f64) -> Result<Value, Failure> {
    match (left["N"].as_str(), right["N"].as_str()) {
        (Some(left), Some(right)) => Ok(json!({ "N": (number(left) + sign * number(right)).to_string() })),
        _ => Err(Failure::validation("Incorrect operand type for operator or function")),
    }
}

fn size(value: &Value) -> Option<usize> {
    let inner = value.as_object()?.values().next()?;
    inner.as_str().map(str::len).or_else(|| inner.as_array().map(Vec::len)).or_else(|| inner.as_object().map(|map| map.len()))
}

fn text_holds(function: &str, whole: Option<&Value>, part: Option<&Value>) -> bool {
    let (Some(whole), Some(part)) = (whole, part) else { return false };
    let (text, sought) = (whole["S"].as_str(), part["S"].as_str().unwrap_or_default());
    match function {
        "begins_with" => text.is_some_and(|text| text.starts_with(sought)),
        _ => {
            let listed = whole["L"].as_array().is_some_and(|list| list.contains(part));
            let in_set = whole["SS"].as_array().is_some_and(|set| set.iter().any(|one| one.as_str() == Some(sought)));
            listed || in_set || text.is_some_and(|text| text.contains(sought))
        }
    }
}

fn equal(left: &Option<Value>, right: &Option<Value>) -> bool {
    left == right || compare(left, right).is_some_and(Ordering::is_eq)
}

/// Only values of the same type have an order.
fn compare(left: &Option<Value>, right: &Option<Value>) -> Option<Ordering> {
    match (Part::of(left.as_ref()?)?, Part::of(right.as_ref()?)?) {
        (Part::Number(left), Part::Number(right)) => number(&left).partial_cmp(&number(&right)),
        (Part::Text(left), Part::Text(right)) => Some(left.cmp(&right)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn item() -> Item {
        json!({"Id": {"S": "c5-1"}, "rev": {"N": "9"}, "Data": {"M": {"status": {"S": "RUNNING"}}}}).as_object().unwrap().clone()
    }

    fn input() -> Value {
        json!({
            "ExpressionAttributeNames": {"#d": "Data", "#s": "status"},
            "ExpressionAttributeValues": {":run": {"S": "RUNNING"}, ":ten": {"N": "10"}, ":nine": {"N": "9.0"}, ":c": {"S": "c5"}}
        })
    }

    #[test]
    fn conditions() {
        for (text, expected) in [
            ("attribute_exists(Id) AND attribute_not_exists(nothing)", true),
            ("#d.#s = :run", true),
            ("NOT (#d.#s = :run) OR rev < :ten", true),
            ("rev = :nine and rev>=:nine", true),
            ("rev <> :nine", false),
            ("nothing = :nine", false),
            ("nothing <> :nine", true),
            ("begins_with(Id, :c) AND size(Id) > :nine", false),
            ("rev BETWEEN :nine AND :ten", true),
            ("Id IN (:run, :c)", false),
            ("contains(Id,:c)", true),
        ] {
            assert_eq!(holds(text, &input(), &item()).unwrap(), expected, "{text}");
        }
        for text in ["rev ==", "rev = :unknown", "#x = :ten", "rev = :ten rev", ""] {
            assert!(holds(text, &input(), &item()).is_err(), "{text}");
        }
    }

    #[test]
    fn updates() {
        let made =
            update("SET #d.#s = :c, rev = rev + :ten, n = if_not_exists(n, :ten) REMOVE Id ADD hits :ten", &input(), &item());
        let made = made.unwrap();
        let expected = json!({"rev": {"N": "19"}, "n": {"N": "10"}, "hits": {"N": "10"}, "Data": {"M": {"status": {"S": "c5"}}}});
        assert_eq!(Value::Object(made), expected);
        assert!(update("SET a.b = :ten", &input(), &item()).is_err());
        assert!(update("PUT a = :ten", &input(), &item()).is_err());
    }
}

//! A table: items by their key, in its order.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Failure;

/// Attribute → value as DynamoDB writes it: `{"Id": {"S": "c5-1"}}`.
pub type Item = Map<String, Value>;

/// A table with its items.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) name: String,
    hash: String,
    range: Option<String>,
    /// Name and key of each secondary index.
    indexes: Vec<(String, String)>,
    /// The actions that the role may do here; `None`: all.
    allowed: Option<Vec<String>>,
    items: BTreeMap<Key, Item>,
}

impl Table {
    /// An empty table with this hash key.
    pub fn new(name: &str, hash: &str) -> Self {
        Table {
            name: name.to_owned(),
            hash: hash.to_owned(),
            range: None,
            indexes: Vec::new(),
            allowed: None,
            items: BTreeMap::new(),
        }
    }

    /// With a sort key as well.
    #[must_use]
    pub fn range(mut self, range: &str) -> Self {
        self.range = Some(range.to_owned());
        self
    }

    /// With a secondary index of this name and hash key, which holds every item that has the key.
    #[must_use]
    pub fn index(mut self, name: &str, hash: &str) -> Self {
        self.indexes.push((name.to_owned(), hash.to_owned()));
        self
    }

    /// The attribute that an index goes by.
    pub(crate) fn index_key(&self, name: &str) -> Result<&str, Failure> {
        let found = self.indexes.iter().find(|(index, _)| index == name);
        let message = || format!("The table does not have the specified index: {name}");
        found.map(|(_, key)| key.as_str()).ok_or_else(|| Failure::validation(message()))
    }

    /// The role may do only this here; anything else is answered `AccessDeniedException`.
    #[must_use]
    pub fn only(mut self, actions: &[&str]) -> Self {
        self.allowed = Some(actions.iter().map(|&action| action.to_owned()).collect());
        self
    }

    pub(crate) fn permits(&self, action: &str) -> Result<(), Failure> {
        if self.allowed.as_ref().is_none_or(|allowed| allowed.iter().any(|one| one == action)) {
            return Ok(());
        }
        let message = format!(
            "User: arn:aws:sts::123456789012:assumed-role/head/i-0 is not authorized to perform: dynamodb:{action} on resource: \
             arn:aws:dynamodb:eu-west-1:123456789012:table/{} because no identity-based policy allows the dynamodb:{action} action",
            self.name
        );
        Err(Failure::new("AccessDeniedException", message))
    }

    pub(crate) fn items(&self) -> Vec<Item> {
        self.items.values().cloned().collect()
    }

    /// The names of the key's attributes.
    pub(crate) fn key_names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.hash).chain(&self.range)
    }

    /// The key of an item, or a key as it is given alone.
    pub(crate) fn key(&self, item: &Item) -> Result<Key, Failure> {
        let part = |name: &String| {
            let value = item.get(name).filter(|value| Part::of(value).is_some());
            value.ok_or_else(|| Failure::validation(format!("One of the required keys was not given a value: {name}")))
        };
        let parts = self.key_names().map(part).collect::<Result<Vec<_>, _>>()?;
        if let Some(empty) = parts.iter().find(|value| value.get("S").and_then(Value::as_str) == Some("")) {
            return Err(Failure::validation(format!(
                "The AttributeValue for a key attribute cannot contain an empty string value: {empty}"
            )));
        }
        Ok(Key(parts.into_iter().filter_map(Part::of).collect()))
    }

    pub(crate) fn key_of(&self, key: &Item) -> Item {
        self.key_names().filter_map(|name| key.get_key_value(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    pub(crate) fn get(&self, key: &Item) -> Result<Option<&Item>, Failure> {
        Ok(self.items.get(&self.key(key)?))
    }

    pub(crate) fn put(&mut self, item: Item) -> Result<Option<Item>, Failure> {
        Ok(self.items.insert(self.key(&item)?, item))
    }

    pub(crate) fn delete(&mut self, key: &Item) -> Result<Option<Item>, Failure> {
        Ok(self.items.remove(&self.key(key)?))
    }
}

/// Hash and sort key, ordered as a query gives them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Number(String),
    Text(String),
}

impl Part {
    /// `{"S": "…"}`, `{"N": "…"}` or `{"B": "…"}`.
    pub(crate) fn of(value: &Value) -> Option<Self> {
        let text = |kind| value.get(kind).and_then(Value::as_str).map(str::to_owned);
        text("N").map(Part::Number).or_else(|| text("S").or_else(|| text("B")).map(Part::Text))
    }
}

impl Ord for Part {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Part::Number(one), Part::Number(two)) => number(one).total_cmp(&number(two)),
            (Part::Text(one), Part::Text(two)) => one.cmp(two),
            (Part::Number(_), Part::Text(_)) => Ordering::Less,
            (Part::Text(_), Part::Number(_)) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Part {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// DynamoDB's numbers have 38 digits; those of the programs fit.
pub(crate) fn number(text: &str) -> f64 {
    text.parse().unwrap_or(f64::NAN)
}

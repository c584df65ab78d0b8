//! One action each: the request's members in, the answer's out.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::expression::{holds, update};
use super::table::{Item, Table};
use super::{DynamoDb, Failure};

/// DynamoDB's own limits.
const MOST_WRITES: usize = 25;
const MOST_READS: usize = 100;
const MOST_IN_TRANSACTION: usize = 100;

impl DynamoDb {
    pub(super) fn act(&mut self, action: &str, input: &Value) -> Result<Value, Failure> {
        match action {
            "PutItem" | "DeleteItem" | "UpdateItem" => self.write(action, input),
            "GetItem" => self.get(input),
            "BatchWriteItem" => self.batch_write(input),
            "BatchGetItem" => self.batch_get(input),
            "TransactWriteItems" => self.transact(input),
            "Query" | "Scan" => self.query(action, input),
            other => Err(Failure::new("UnknownOperationException", format!("{other} is not served here"))),
        }
    }

    /// The table a request names, if it may be used so.
    fn named(&mut self, action: &str, input: &Value) -> Result<&mut Table, Failure> {
        let table = self.table(input["TableName"].as_str().unwrap_or_default())?;
        table.permits(action)?;
        Ok(table)
    }

    fn write(&mut self, action: &str, input: &Value) -> Result<Value, Failure> {
        let table = self.named(action, input)?;
        let change = Change::read(action, table, input)?;
        change.check(table, input)?;
        let (old, new) = change.carry_out(table)?;
        let kept = match input["ReturnValues"].as_str() {
            Some("ALL_OLD" | "UPDATED_OLD") => old,
            Some("ALL_NEW" | "UPDATED_NEW") => new,
            _ => None,
        };
        Ok(kept.map_or_else(|| json!({}), |item| json!({ "Attributes": item })))
    }

    fn get(&mut self, input: &Value) -> Result<Value, Failure> {
        let table = self.named("GetItem", input)?;
        let found = table.get(item(&input["Key"])?)?;
        Ok(found.map_or_else(|| json!({}), |item| json!({ "Item": item })))
    }

    fn batch_write(&mut self, input: &Value) -> Result<Value, Failure> {
        let mut wanted = Vec::new();
        let mut keys = BTreeSet::new();
        for (name, requests) in item(&input["RequestItems"])? {
            let table = self.table(name)?;
            table.permits("BatchWriteItem")?;
            for request in requests.as_array().into_iter().flatten() {
                let change = match request.get("PutRequest") {
                    Some(put) => Change::Put(item(&put["Item"])?.clone()),
                    None => Change::Delete(item(&request["DeleteRequest"]["Key"])?.clone()),
                };
                if !keys.insert((name.clone(), table.key(change.key())?)) {
                    return Err(Failure::validation("Provided list of item keys contains duplicates"));
                }
                wanted.push((name.clone(), change, request.clone()));
            }
        }
        if wanted.is_empty() || wanted.len() > MOST_WRITES {
            let message = format!("Member must have length between 1 and {MOST_WRITES}, got {}", wanted.len());
            return Err(Failure::validation(message));
        }
        let mut left = json!({});
        for (name, change, request) in wanted {
            if self.leaves_out() {
                push(&mut left, &name, request);
            } else {
                change.carry_out(self.table(&name)?)?;
            }
        }
        Ok(json!({ "UnprocessedItems": left }))
    }

    fn batch_get(&mut self, input: &Value) -> Result<Value, Failure> {
        let mut count = 0;
        let mut found = json!({});
        let mut left = json!({});
        for (name, wanted) in item(&input["RequestItems"])? {
            self.table(name)?.permits("BatchGetItem")?;
            let mut keys = BTreeSet::new();
            let mut unread = Vec::new();
            for key in wanted["Keys"].as_array().into_iter().flatten() {
                count += 1;
                let leaves_out = self.leaves_out();
                let table = self.table(name)?;
                if !keys.insert(table.key(item(key)?)?) {
                    return Err(Failure::validation("Provided list of item keys contains duplicates"));
                }
                if leaves_out {
                    unread.push(key.clone());
                } else if let Some(item) = table.get(item(key)?)? {
                    push(&mut found, name, Value::Object(item.clone()));
                }
            }
            if !unread.is_empty() {
                left[name] = wanted.clone();
                left[name]["Keys"] = Value::Array(unread);
            }
        }
        if count == 0 || count > MOST_READS {
            return Err(Failure::validation(format!("Too many items requested for the BatchGetItem call: {count}")));
        }
        Ok(json!({ "Responses": found, "UnprocessedKeys": left }))
    }

    fn transact(&mut self, input: &Value) -> Result<Value, Failure> {
        let parts = input["TransactItems"].as_array().cloned().unwrap_or_default();
        if parts.is_empty() || parts.len() > MOST_IN_TRANSACTION {
            let message = format!("Member must have length between 1 and {MOST_IN_TRANSACTION}, got {}", parts.len());
            return Err(Failure::validation(message));
        }
        let mut changes = Vec::new();
        let mut keys = BTreeSet::new();
        let mut reasons = Vec::new();
        for part in &parts {
            let (kind, input) = item(part)?.iter().next().ok_or_else(|| Failure::validation("an empty transaction item"))?;
            let action = if kind == "ConditionCheck" { "ConditionCheckItem" } else { &format!("{kind}Item") };
            let table = self.named(action, input)?;
            let change = Change::read(action, table, input)?;
            if !keys.insert((table.name.clone(), table.key(change.key())?)) {
                return Err(Failure::validation("Transaction request cannot include multiple operations on one item"));
            }
            reasons.push(match change.check(table, input) {
                Ok(()) => json!({ "Code": "None" }),
                Err(failure) if failure.code == CONDITION => {
                    let mut reason = json!({ "Code": "ConditionalCheckFailed", "Message": failure.message });
                    if let Some(item) = failure.more.get("Item") {
                        reason["Item"] = item.clone();
                    }
                    reason
                }
                Err(failure) => return Err(failure),
            });
            changes.push((table.name.clone(), change));
        }
        if reasons.iter().any(|reason| reason["Code"] != "None") {
            let codes: Vec<&str> = reasons.iter().filter_map(|reason| reason["Code"].as_str()).collect();
            let message =
                format!("Transaction cancelled, please refer cancellation reasons for specific reasons [{}]", codes.join(", "));
            let more = json!({ "Message": message.clone(), "CancellationReasons": reasons });
            return Err(Failure { code: "TransactionCanceledException", message, more });
        }
        for (name, change) in changes {
            change.carry_out(self.table(&name)?)?;
        }
        Ok(json!({}))
    }

    fn query(&mut self, action: &str, input: &Value) -> Result<Value, Failure> {
        let table = self.named(action, input)?;
        let condition = input["KeyConditionExpression"].as_str();
        if action == "Query" && condition.is_none() {
            return Err(Failure::validation("Either the KeyConditions or KeyConditionExpression parameter must be specified"));
        }
        let index = input["IndexName"].as_str().map(|name| table.index_key(name)).transpose()?;
        if index.is_some() && input["ConsistentRead"] == true {
            return Err(Failure::validation("Consistent reads are not supported on global secondary indexes"));
        }
        let limit = input["Limit"].as_u64().and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let start = input["ExclusiveStartKey"].as_object().map(|key| table.key(key)).transpose()?;
        let (mut found, mut looked_at, mut last) = (Vec::new(), 0, None);
        for item in table.items() {
            if index.is_some_and(|key| !item.contains_key(key)) {
                continue;
            }
            let key = table.key(&item)?;
            let ahead = start.as_ref().is_some_and(|start| key <= *start);
            if ahead || !condition.map_or(Ok(true), |text| holds(text, input, &item))? {
                continue;
            }
            if looked_at == limit {
                last = found.last().map(|item| table.key_of(item));
                break;
            }
            looked_at += 1;
            found.push(item);
        }
        let mut kept = Vec::new();
        for item in found {
            if input["FilterExpression"].as_str().map_or(Ok(true), |text| holds(text, input, &item))? {
                kept.push(Value::Object(item));
            }
        }
        let mut answer = json!({ "Count": kept.len(), "ScannedCount": looked_at, "Items": kept });
        if let Some(last) = last {
            answer["LastEvaluatedKey"] = Value::Object(last);
        }
        Ok(answer)
    }
}

const CONDITION: &str = "ConditionalCheckFailedException";

/// What is to become of one item.
enum Change {
    Put(Item),
    Delete(Item),
    /// The item's key, and what the expression made of it.
    Update(Item, Item),
    /// A condition alone.
    Look(Item),
}

impl Change {
    fn read(action: &str, table: &Table, input: &Value) -> Result<Self, Failure> {
        if action == "PutItem" {
            return Ok(Change::Put(item(&input["Item"])?.clone()));
        }
        let key = item(&input["Key"])?.clone();
        match action {
            "DeleteItem" => Ok(Change::Delete(key)),
            "UpdateItem" => {
                let old = table.get(&key)?.cloned().unwrap_or_else(|| table.key_of(&key));
                let text = input["UpdateExpression"].as_str().unwrap_or_default();
                // What does not pass its condition need not be fit for its update.
                let passes = condition(table, &key, input)?;
                let new = if passes { update(text, input, &old)? } else { old };
                Ok(Change::Update(key, new))
            }
            _ => Ok(Change::Look(key)),
        }
    }

    fn key(&self) -> &Item {
        match self {
            Change::Put(item) | Change::Delete(item) | Change::Update(item, _) | Change::Look(item) => item,
        }
    }

    fn check(&self, table: &Table, input: &Value) -> Result<(), Failure> {
        if condition(table, self.key(), input)? {
            return Ok(());
        }
        let mut failure = Failure::new(CONDITION, "The conditional request failed");
        if input["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
            && let Some(old) = table.get(self.key())?
        {
            failure.more = json!({ "Item": old });
        }
        Err(failure)
    }

    /// The item before and after.
    fn carry_out(self, table: &mut Table) -> Result<(Option<Item>, Option<Item>), Failure> {
        match self {
            Change::Put(item) => Ok((table.put(item.clone())?, Some(item))),
            Change::Delete(key) => Ok((table.delete(&key)?, None)),
            Change::Update(_, item) => Ok((table.put(item.clone())?, Some(item))),
            Change::Look(_) => Ok((None, None)),
        }
    }
}

fn condition(table: &Table, key: &Item, input: &Value) -> Result<bool, Failure> {
    let Some(text) = input["ConditionExpression"].as_str() else { return Ok(true) };
    let nothing = Item::new();
    holds(text, input, table.get(key)?.unwrap_or(&nothing))
}

fn item(value: &Value) -> Result<&Item, Failure> {
    value.as_object().ok_or_else(|| Failure::validation("a member is missing or is not a map"))
}

fn push(map: &mut Value, name: &str, value: Value) {
    match map[name].as_array_mut() {
        Some(list) => list.push(value),
        None => map[name] = json!([value]),
    }
}

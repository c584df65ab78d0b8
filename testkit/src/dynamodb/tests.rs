//! The endpoint's own promises: what the programs' tests rely on.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::{DynamoDb, Failure, Table};

fn served() -> DynamoDb {
    let tables =
        vec![Table::new("nodes", "Id").only(&["PutItem", "BatchWriteItem", "BatchGetItem"]), Table::new("own", "pk").range("sk")];
    DynamoDb { tables, unprocessed_percent: 0, latency_ms: 0, share: 0 }
}

fn own(pk: &str, sk: u32, rev: u32) -> Value {
    json!({"pk": {"S": pk}, "sk": {"N": sk.to_string()}, "rev": {"N": rev.to_string()}})
}

fn code(done: Result<Value, Failure>) -> &'static str {
    done.map_or_else(|failure| failure.code, |_| "done")
}

#[test]
fn a_condition_decides_over_a_write() {
    let mut served = served();
    let new = |rev| json!({"TableName": "own", "Item": own("a", 1, rev), "ConditionExpression": "attribute_not_exists(pk)"});
    assert_eq!(code(served.act("PutItem", &new(1))), "done");
    let mut again = new(2);
    again["ReturnValuesOnConditionCheckFailure"] = json!("ALL_OLD");
    let failure = served.act("PutItem", &again).unwrap_err();
    assert_eq!((failure.code, &failure.more["Item"]["rev"]["N"]), ("ConditionalCheckFailedException", &json!("1")));
    let key = json!({"pk": {"S": "a"}, "sk": {"N": "1"}});
    let update = json!({
        "TableName": "own", "Key": key, "UpdateExpression": "SET rev = rev + :one", "ConditionExpression": "rev = :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}}, "ReturnValues": "ALL_NEW"
    });
    assert_eq!(served.act("UpdateItem", &update).unwrap()["Attributes"]["rev"]["N"], "2");
    assert_eq!(code(served.act("UpdateItem", &update)), "ConditionalCheckFailedException");
    assert_eq!(code(served.act("DeleteItem", &json!({"TableName": "own", "Key": key}))), "done");
    assert_eq!(served.act("GetItem", &json!({"TableName": "own", "Key": key})).unwrap(), json!({}));
}

#[test]
fn a_transaction_is_whole_or_not_at_all() {
    let mut served = served();
    let put =
        |sk| json!({"Put": {"TableName": "own", "Item": own("a", sk, 1), "ConditionExpression": "attribute_not_exists(pk)"}});
    assert_eq!(code(served.act("TransactWriteItems", &json!({"TransactItems": [put(1), put(2)]}))), "done");
    let failure = served.act("TransactWriteItems", &json!({"TransactItems": [put(3), put(2)]})).unwrap_err();
    let codes: Vec<&Value> = failure.more["CancellationReasons"].as_array().unwrap().iter().map(|one| &one["Code"]).collect();
    assert_eq!((failure.code, codes), ("TransactionCanceledException", vec![&json!("None"), &json!("ConditionalCheckFailed")]));
    assert_eq!(served.tables[1].items().len(), 2);
    assert_eq!(code(served.act("TransactWriteItems", &json!({"TransactItems": [put(4), put(4)]}))), "ValidationException");
}

#[test]
fn a_query_goes_in_order_and_by_pages() {
    let mut served = served();
    for sk in [10, 9, 2, 1] {
        served.tables[1].put(own("a", sk, 1).as_object().unwrap().clone()).unwrap();
    }
    served.tables[1].put(own("b", 1, 1).as_object().unwrap().clone()).unwrap();
    let mut query = json!({
        "TableName": "own", "KeyConditionExpression": "pk = :a", "ExpressionAttributeValues": {":a": {"S": "a"}}, "Limit": 3
    });
    let page = served.act("Query", &query).unwrap();
    let order: Vec<&Value> = page["Items"].as_array().unwrap().iter().map(|item| &item["sk"]["N"]).collect();
    assert_eq!(order, [&json!("1"), &json!("2"), &json!("9")]);
    query["ExclusiveStartKey"] = page["LastEvaluatedKey"].clone();
    let page = served.act("Query", &query).unwrap();
    assert_eq!((page["Count"].as_u64(), page.get("LastEvaluatedKey")), (Some(1), None));
}

#[test]
fn batches_have_their_limits_and_a_role_its_own() {
    let mut served = served();
    let puts = |range: std::ops::Range<u32>| {
        let put = |n| json!({"PutRequest": {"Item": {"Id": {"S": format!("n{n}")}}}});
        json!({"RequestItems": {"nodes": range.map(put).collect::<Vec<_>>()}})
    };
    assert_eq!(code(served.act("BatchWriteItem", &puts(0..26))), "ValidationException");
    served.unprocessed_percent = 40;
    let left = served.act("BatchWriteItem", &puts(0..25)).unwrap();
    assert_eq!((left["UnprocessedItems"]["nodes"].as_array().unwrap().len(), served.tables[0].items().len()), (10, 15));
    let query = json!({"TableName": "nodes", "KeyConditionExpression": "Id = :a"});
    assert_eq!(code(served.act("Query", &query)), "AccessDeniedException");
    assert_eq!(code(served.act("PutItem", &json!({"TableName": "gone", "Item": {}}))), "ResourceNotFoundException");
}

//! What a compute node asks ParallelCluster's table of nodes (aws-facts B.13) at boot: an instance id in, the names of its nodes out, by
//! the index of instance ids. The compute nodes' role may query table and index; items are never removed, only overwritten.

use aws_sdk_dynamodb::types::AttributeValue;

use super::{DynamoDb, SERVICE};
use crate::aws::error::AwsError;

/// The table's index, called as its key is.
const INDEX: &str = "InstanceId";
const ID: &str = "Id";

const QUERY: &str = "Query";

impl DynamoDb {
    /// The nodes that this instance stands behind by the table: one, or none yet. The index may lag behind the table by moments.
    pub(crate) async fn nodes_of(&self, table: &str, instance: &str) -> Result<Vec<String>, AwsError> {
        let call = self.client().query().table_name(table).index_name(INDEX);
        let call = call.key_condition_expression("#key = :instance").expression_attribute_names("#key", INDEX);
        let call = call.expression_attribute_values(":instance", AttributeValue::S(instance.to_owned()));
        let answer = call.send().await.map_err(|error| AwsError::from_sdk(SERVICE, QUERY, &error))?;
        let name = |item: &std::collections::HashMap<String, AttributeValue>| item.get(ID)?.as_s().ok().cloned();
        Ok(answer.items.unwrap_or_default().iter().filter_map(name).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use slurm_ec2_testkit::dynamodb::{Behaviour, Endpoint, Table};

    use super::*;
    use crate::aws::responder::settings;

    #[tokio::test]
    async fn an_instance_finds_its_node_by_the_index() {
        let table = Table::new("nodes", "Id").index("InstanceId", "InstanceId").only(&["Query"]);
        let endpoint = Endpoint::start(Behaviour { tables: vec![table], ..Behaviour::default() });
        for (node, instance) in [("apple-dy-core-7", "i-7"), ("apple-dy-core-8", "i-8")] {
            let item = json!({"Id": {"S": node}, "InstanceId": {"S": instance}, "HeadNodePrivateIp": {"S": "10.40.0.17"}});
            endpoint.put("nodes", item.as_object().unwrap().clone());
        }
        let mut aws = settings();
        aws.dynamodb_endpoint_url = Some(endpoint.url());
        let dynamodb = DynamoDb::connect(&aws, "eu-central-1").await.unwrap();
        assert_eq!(dynamodb.nodes_of("nodes", "i-7").await.unwrap(), ["apple-dy-core-7"]);
        assert!(dynamodb.nodes_of("nodes", "i-9").await.unwrap().is_empty());
        let error = dynamodb.nodes_of("others", "i-7").await.unwrap_err().to_string();
        assert!(error.contains("ResourceNotFoundException"), "{error}");
    }
}

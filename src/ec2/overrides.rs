//! Overrides of a recipe on the wire: the request as the SDK wrote it in, the same request with each overridden parameter
//! replaced whole out. The SDK's own types cannot be filled from text, so this works on the form that EC2's protocol sends.
//!
//! Our tags stay on the instances whatever an override says: by them a launch is found again.

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::BeforeTransmitInterceptorContextMut;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::base64;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::config_bag::ConfigBag;
use serde_json::{Map, Value, json};

use crate::model::api_parameters::{query, query_name};
use crate::model::instance::tag;
use crate::model::recipe::Api;
use crate::model::round::LaunchRequest;

/// Puts the overrides of one launch into its request: once, before it is signed and for all its tries.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Overrides {
    /// The parameters that go, as the form names them.
    replaced: Vec<String>,
    /// What comes instead.
    pairs: Vec<(String, String)>,
}

impl Overrides {
    /// `None` = nothing is overridden.
    pub(super) fn of(request: &LaunchRequest) -> Option<Self> {
        let (api, overrides) = (request.recipe.api, &request.recipe.overrides);
        if overrides.is_empty() {
            return None;
        }
        let replaced = overrides.keys().map(|name| query_name(api, name).to_owned()).collect();
        let mut pairs = query(api, &with_our_tags(overrides, &request.tags));
        for (key, value) in &mut pairs {
            // boto3 takes the text itself and encodes it; EC2 takes it encoded.
            if api == Api::RunInstances && key == "UserData" {
                *value = base64::encode(&*value);
            }
        }
        Some(Self { replaced, pairs })
    }

    /// The form with the overridden parameters replaced; all others keep their place.
    fn apply(&self, form: &str) -> String {
        let goes = |pair: &str| {
            let key = pair.split('=').next().unwrap_or_default();
            let parameter = key.split('.').next().unwrap_or_default();
            self.replaced.iter().any(|name| name == parameter)
        };
        let kept = form.split('&').filter(|pair| !pair.is_empty() && !goes(pair)).map(str::to_owned);
        let added = self.pairs.iter().map(|(key, value)| format!("{}={}", encoded(key), encoded(value)));
        kept.chain(added).collect::<Vec<_>>().join("&")
    }
}

impl Intercept for Overrides {
    fn name(&self) -> &'static str {
        "slurm-ec2's overrides"
    }

    fn modify_before_retry_loop(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let request = context.request_mut();
        let form = request.body().bytes().ok_or("the request's form is not in memory")?;
        let form = self.apply(std::str::from_utf8(form)?);
        request.headers_mut().insert("content-length", form.len().to_string());
        *request.body_mut() = SdkBody::from(form);
        Ok(())
    }
}

/// An override of the tags names the admin's; ours are added to its entry for instances.
fn with_our_tags(overrides: &Map<String, Value>, tags: &[(String, String)]) -> Map<String, Value> {
    let mut overrides = overrides.clone();
    if let Some(Value::Array(entries)) = overrides.get_mut("TagSpecifications") {
        let ours = tags.iter().filter(|(key, _)| key.starts_with(tag::PREFIX));
        let ours = ours.map(|(key, value)| json!({"Key": key, "Value": value}));
        let instances = entries.iter_mut().find(|entry| entry["ResourceType"] == "instance").and_then(Value::as_object_mut);
        match instances.map(|entry| entry.entry("Tags").or_insert_with(|| json!([]))) {
            Some(Value::Array(list)) => list.extend(ours),
            _ => entries.push(json!({"ResourceType": "instance", "Tags": ours.collect::<Vec<_>>()})),
        }
    }
    overrides
}

/// Percent-encoded but for what RFC 3986 calls unreserved.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn overrides(replaced: &[&str], pairs: &[(&str, &str)]) -> Overrides {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Overrides { replaced: replaced.iter().map(|&name| name.to_owned()).collect(), pairs }
    }

    #[test]
    fn a_parameter_goes_with_all_below_it_and_takes_no_other_along() {
        let form = "Action=CreateFleet&LaunchTemplate.Name=a&LaunchTemplateConfigs.1.Name=b&LaunchTemplate=c&Type=instant";
        let all = overrides(&["LaunchTemplate"], &[("LaunchTemplate.Name", "d & e/ü~")]);
        assert_eq!(
            all.apply(form),
            "Action=CreateFleet&LaunchTemplateConfigs.1.Name=b&Type=instant&LaunchTemplate.Name=d%20%26%20e%2F%C3%BC~"
        );
        // An empty override takes its parameter away and puts nothing there.
        assert_eq!(overrides(&["Type", "LaunchTemplate"], &[]).apply(form), "Action=CreateFleet&LaunchTemplateConfigs.1.Name=b");
    }

    #[test]
    fn b58_r34_our_tags_stay_on_the_instances() {
        let ours = [("slurm-ec2:launch".to_owned(), "abc".to_owned()), ("team".to_owned(), "config".to_owned())];
        let our = json!({"Key": "slurm-ec2:launch", "Value": "abc"});
        let their = json!({"Key": "cost", "Value": "7"});
        let volume = json!({"ResourceType": "volume", "Tags": [their]});
        for (given, expected) in [
            (json!([]), json!([{"ResourceType": "instance", "Tags": [our]}])),
            (json!([volume]), json!([volume, {"ResourceType": "instance", "Tags": [our]}])),
            (
                json!([volume, {"ResourceType": "instance", "Tags": [their]}]),
                json!([volume, {"ResourceType": "instance", "Tags": [their, our]}]),
            ),
            (json!([{"ResourceType": "instance"}]), json!([{"ResourceType": "instance", "Tags": [our]}])),
        ] {
            let overrides = Map::from_iter([("TagSpecifications".to_owned(), given)]);
            assert_eq!(with_our_tags(&overrides, &ours)["TagSpecifications"], expected);
        }
        let other = Map::from_iter([("SubnetId".to_owned(), json!("subnet-1"))]);
        assert_eq!(with_our_tags(&other, &ours), other, "the built tags stay as they are");
    }
}

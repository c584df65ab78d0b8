//! The door itself: settings in, `Ec2` out; each method is one EC2 call in our words. Decides nothing and repeats only what
//! is safe to repeat: the pauses of a launch that is tried again with policy are its caller's.

use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::Builder;
use aws_sdk_ec2::operation::RequestId;
use aws_smithy_types::base64;

use super::answer;
use super::codes::{self, classify};
pub(crate) use super::error::Ec2Error;
use super::instances::Reading;
use super::overrides::Overrides;
use super::request;
use super::retry::OnlyOurs;
pub(crate) use crate::aws::calls::CallCounts;
use crate::aws::calls::Counter;
use crate::aws::{client, http};
use crate::config::settings::AwsSettings;
use crate::model::failure::{ErrorClass, codes as own};
use crate::model::recipe::{Api, LaunchTemplate};
use crate::model::round::{LaunchRequest, Launched};

/// Ids in one CreateTags or RebootInstances call (EC2's limit is 1,000 resources).
const IDS_PER_CALL: usize = 1000;

/// Bytes kept of a console's output, from its end: what EC2 itself keeps.
const CONSOLE_TAIL: usize = 64 * 1024;

/// A connection to EC2 in one region. Cheap to clone; the clones share connections, credentials and counts.
#[derive(Debug, Clone)]
pub(crate) struct Ec2 {
    client: Client,
    counter: Counter,
}

/// The version a launch names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplateVersion {
    /// A number: every launch of a run uses the same one.
    Number(String),
    /// Still `$Latest` or `$Default`: this role may not look (ec2:DescribeLaunchTemplates), EC2 resolves it at launch.
    Symbolic(String),
}

impl TemplateVersion {
    pub(crate) fn as_str(&self) -> &str {
        match self {
            Self::Number(version) | Self::Symbolic(version) => version,
        }
    }
}

impl Ec2 {
    /// Nothing is sent, read or resolved yet: credentials, CA bundle and name servers wait for the first call.
    /// An error here is a setting that cannot be used.
    pub(crate) async fn connect(aws: &AwsSettings, region: &str) -> Result<Self, Ec2Error> {
        http::check(aws, "endpoint_url", aws.endpoint_url.as_deref())
            .map_err(|why| Ec2Error::new("connect", own::CONFIGURATION, ErrorClass::Configuration, why))?;
        let counter = Counter::default();
        let builder = Builder::from(&client::shared(aws, region, aws.endpoint_url.as_deref()))
            .retry_classifier(OnlyOurs)
            .interceptor(counter.clone());
        Ok(Self { client: Client::from_conf(builder.build()), counter })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Every try so far, and the slowest.
    pub(crate) fn calls(&self) -> CallCounts {
        self.counter.counts()
    }

    /// One launch call, with the request's own client token in every try. A fleet of fewer instances, or of none, is an
    /// answer, with its errors; a repeat of it needs a new token.
    pub(crate) async fn launch(&self, request: &LaunchRequest) -> Result<Launched, Ec2Error> {
        match request.recipe.api {
            Api::RunInstances => self.run_instances(request).await,
            Api::CreateFleet => self.create_fleet(request).await,
        }
    }

    async fn run_instances(&self, request: &LaunchRequest) -> Result<Launched, Ec2Error> {
        let reading = Reading::default();
        let mut call = request::run_instances(self.client.run_instances(), request).customize().interceptor(reading.clone());
        if let Some(overrides) = Overrides::of(request) {
            call = call.interceptor(overrides);
        }
        let answer = call.send().await.map_err(|error| Ec2Error::from_sdk("RunInstances", &error))?;
        let request_id = answer.request_id().map(str::to_owned);
        let mut instances = reading.taken();
        instances.extend(answer.instances.unwrap_or_default().into_iter().filter_map(answer::instance));
        if instances.is_empty() {
            // MinCount is at least one: EC2 never says this. The same token tells what really happened.
            let mut error =
                Ec2Error::new("RunInstances", codes::UNREADABLE, ErrorClass::Ambiguous, "an answer without instances");
            error.request_id = request_id;
            return Err(error);
        }
        Ok(Launched { instances, errors: Vec::new(), request_id })
    }

    async fn create_fleet(&self, request: &LaunchRequest) -> Result<Launched, Ec2Error> {
        let mut call = request::create_fleet(self.client.create_fleet(), request).customize();
        if let Some(overrides) = Overrides::of(request) {
            call = call.interceptor(overrides);
        }
        let answer = call.send().await.map_err(|error| Ec2Error::from_sdk("CreateFleet", &error))?;
        let request_id = answer.request_id().map(str::to_owned);
        let (instances, errors) = answer::fleet(answer, request, request_id.as_deref());
        Ok(Launched { instances, errors, request_id })
    }

    /// The end of what the instance wrote to its console; `None` while EC2 has nothing.
    pub(crate) async fn console_output(&self, id: &str) -> Result<Option<String>, Ec2Error> {
        const OPERATION: &str = "GetConsoleOutput";
        let answer = self.client.get_console_output().instance_id(id).send().await;
        let answer = answer.map_err(|error| Ec2Error::from_sdk(OPERATION, &error))?;
        let Some(packed) = answer.output.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
        let packed: String = packed.split_whitespace().collect();
        let bytes = base64::decode(&packed)
            .map_err(|error| Ec2Error::new(OPERATION, codes::UNREADABLE, ErrorClass::Other, crate::error::chain(&error)))?;
        let tail = &bytes[bytes.len().saturating_sub(CONSOLE_TAIL)..];
        Ok(Some(String::from_utf8_lossy(tail).into_owned()))
    }

    /// Asks for a reboot; EC2 answers before it happens.
    pub(crate) async fn reboot(&self, ids: &[String]) -> Result<(), Ec2Error> {
        for chunk in ids.chunks(IDS_PER_CALL) {
            let sent = self.client.reboot_instances().set_instance_ids(Some(chunk.to_vec())).send().await;
            sent.map_err(|error| Ec2Error::from_sdk("RebootInstances", &error))?;
        }
        Ok(())
    }

    /// Sets the tags on every one of the instances; a tag of the same key is replaced.
    pub(crate) async fn tag(&self, ids: &[String], tags: &[(String, String)]) -> Result<(), Ec2Error> {
        if tags.is_empty() {
            return Ok(());
        }
        for chunk in ids.chunks(IDS_PER_CALL) {
            let call = self.client.create_tags().set_resources(Some(chunk.to_vec())).set_tags(Some(request::tags(tags)));
            call.send().await.map_err(|error| Ec2Error::from_sdk("CreateTags", &error))?;
        }
        Ok(())
    }

    /// What `$Latest` and `$Default` stand for now; a number is itself, without a call.
    pub(crate) async fn template_version(&self, template: &LaunchTemplate) -> Result<TemplateVersion, Ec2Error> {
        const OPERATION: &str = "DescribeLaunchTemplates";
        if !template.version.starts_with('$') {
            return Ok(TemplateVersion::Number(template.version.clone()));
        }
        let call = self.client.describe_launch_templates();
        let call = match (&template.id, &template.name) {
            (Some(id), _) => call.launch_template_ids(id),
            (None, Some(name)) => call.launch_template_names(name),
            (None, None) => call,
        };
        let found = match call.send().await.map_err(|error| Ec2Error::from_sdk(OPERATION, &error)) {
            Ok(answer) => answer.launch_templates.unwrap_or_default().into_iter().next(),
            Err(error) if error.code == "UnauthorizedOperation" => {
                return Ok(TemplateVersion::Symbolic(template.version.clone()));
            }
            Err(error) => return Err(error),
        };
        let number = found.and_then(|found| match template.version.as_str() {
            "$Latest" => found.latest_version_number,
            _ => found.default_version_number,
        });
        match number {
            Some(number) => Ok(TemplateVersion::Number(number.to_string())),
            None => {
                let code = "InvalidLaunchTemplateName.NotFoundException";
                let message = format!("launch template {} is not there", template.label());
                Err(Ec2Error::new(OPERATION, code, classify(code, None), message))
            }
        }
    }
}

//! Answers about instances, read without the SDK: EC2's XML in, [`Instance`]s out, and the rest of the document for the SDK.
//!
//! An instance is 2.5 KB of XML and some 75 elements, of which 15 are of use here. The SDK compares each element's name with up to 70
//! others, and its `Instance` takes room for all of them; for the 10,000 of a large cluster that was more than half of what clustermgtd's
//! pass computed. So what stands in `<instancesSet>` is read here, and the SDK gets the document without it: status, error, request id and
//! page token are its to read.
//!
//! Whatever is not plain enough to be sure of (see `xml.rs`) is left in the document, and the caller finds the instances in the SDK's
//! answer: [`Reading::taken`] and the answer's own list together are always all of them. Whoever wants another field of an instance
//! adds its element here and in [`Told`].

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_ec2::operation::describe_instances::DescribeInstances;
use aws_sdk_ec2::operation::run_instances::RunInstances;
use aws_sdk_ec2::types::InstanceStateName;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{BeforeSerializationInterceptorContextMut, Error, Output};
use aws_smithy_runtime_api::client::orchestrator::{HttpResponse, Metadata, OrchestratorError};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::client::runtime_plugin::RuntimePlugin;
use aws_smithy_runtime_api::client::ser_de::{DeserializeResponse, SharedResponseDeserializer};
use aws_smithy_types::DateTime;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::config_bag::{ConfigBag, FrozenLayer};
use aws_smithy_types::date_time::Format;

use super::answer::{Card, Told};
use super::xml::{Cursor, Tag};
use crate::model::instance::Instance;

type Shelf = Arc<Mutex<Vec<Instance>>>;

/// Reads the instances of one call's answer, for RunInstances and DescribeInstances. To be made for each call, and given to it.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    found: Shelf,
}

impl Reading {
    /// What the last answer held, as far as it was read here.
    pub(super) fn taken(&self) -> Vec<Instance> {
        std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Intercept for Reading {
    fn name(&self) -> &'static str {
        "slurm-ec2's reading of instances"
    }

    // Once per call, before its first try.
    fn modify_before_serialization(
        &self,
        _: &mut BeforeSerializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let own = match cfg.load::<Metadata>().map(Metadata::name) {
            Some("RunInstances") => RunInstances::new().config(),
            Some("DescribeInstances") => DescribeInstances::new().config(),
            _ => None,
        };
        if let Some(own) = own.filter(|own| own.load::<SharedResponseDeserializer>().is_some()) {
            let reader = Reader { own, found: Arc::clone(&self.found) };
            cfg.interceptor_state().store_put(SharedResponseDeserializer::new(reader));
        }
        Ok(())
    }
}

/// Takes the instances out of an answer and has the rest read by the SDK's own reader, which is in the operation's own settings.
#[derive(Debug)]
struct Reader {
    own: FrozenLayer,
    found: Shelf,
}

impl DeserializeResponse for Reader {
    fn deserialize_nonstreaming_with_config(
        &self,
        response: &HttpResponse,
        cfg: &ConfigBag,
    ) -> Result<Output, OrchestratorError<Error>> {
        let Some(reader) = self.own.load::<SharedResponseDeserializer>() else {
            return Err(OrchestratorError::other("the SDK has no reader for this answer"));
        };
        let read = response.body().bytes().filter(|_| response.status().is_success()).and_then(split);
        let (found, rest) = read.map_or((Vec::new(), None), |(found, rest)| (found, Some(rest)));
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
        let Some(rest) = rest else { return reader.deserialize_nonstreaming_with_config(response, cfg) };
        let mut short = HttpResponse::new(response.status(), SdkBody::from(rest));
        *short.headers_mut() = response.headers().clone();
        reader.deserialize_nonstreaming_with_config(&short, cfg)
    }
}

/// The instances of a document, and the document without them; `None` = take it as it is.
fn split(document: &[u8]) -> Option<(Vec<Instance>, Vec<u8>)> {
    let mut split = Split { document, found: Vec::new(), rest: Vec::new(), copied: 0 };
    let mut cursor = Cursor::new(document);
    let root = cursor.root()?;
    if !matches!(root.name, b"DescribeInstancesResponse" | b"RunInstancesResponse") {
        return None;
    }
    cursor.children(root, |cursor, tag| match tag.name {
        b"reservationSet" => cursor.children(tag, |cursor, item| {
            cursor.children(item, |cursor, tag| match tag.name {
                b"instancesSet" => split.instances(cursor, tag),
                _ => cursor.skip(tag),
            })
        }),
        b"instancesSet" => split.instances(cursor, tag),
        _ => cursor.skip(tag),
    })?;
    split.rest.extend_from_slice(&document[split.copied..]);
    Some((split.found, split.rest))
}

struct Split<'d> {
    document: &'d [u8],
    found: Vec<Instance>,
    rest: Vec<u8>,
    /// So far the document is in `rest`, or left out of it.
    copied: usize,
}

impl<'d> Split<'d> {
    fn instances(&mut self, cursor: &mut Cursor<'d>, set: Tag<'d>) -> Option<()> {
        let start = cursor.at();
        cursor.children(set, |cursor, item| {
            self.found.extend(told(cursor, item)?.instance());
            Some(())
        })?;
        let end_tag = set.name.len() + "</>".len();
        if cursor.at() > start {
            self.rest.extend_from_slice(&self.document[self.copied..start]);
            self.copied = cursor.at() - end_tag;
        }
        Some(())
    }
}

fn told<'d>(cursor: &mut Cursor<'d>, item: Tag<'d>) -> Option<Told<'d>> {
    let mut told = Told::default();
    cursor.children(item, |cursor, tag| {
        match tag.name {
            b"instanceId" => told.id = Some(cursor.text(tag)?),
            b"instanceState" => told.state = state(cursor, tag)?,
            b"instanceType" => told.instance_type = Some(cursor.text(tag)?),
            b"launchTime" => told.launch_time = Some(time(&cursor.text(tag)?)?),
            b"networkInterfaceSet" => told.card = primary(cursor, tag)?,
            b"placement" => cursor.children(tag, |cursor, tag| {
                match tag.name {
                    b"availabilityZone" => told.zone = Some(cursor.text(tag)?),
                    _ => cursor.skip(tag)?,
                }
                Some(())
            })?,
            b"privateDnsName" => told.private_dns = Some(cursor.text(tag)?),
            b"privateIpAddress" => told.private_ip = Some(cursor.text(tag)?),
            b"subnetId" => told.subnet = Some(cursor.text(tag)?),
            b"tagSet" => told.tags = tags(cursor, tag)?,
            _ => cursor.skip(tag)?,
        }
        Some(())
    })?;
    Some(told)
}

/// The primary one of a set of interfaces; `None` within for a set that has none.
#[expect(clippy::option_option, reason = "the outer one is `?` of everything here")]
fn primary<'d>(cursor: &mut Cursor<'d>, set: Tag<'d>) -> Option<Option<Card<'d>>> {
    let mut primary = None;
    cursor.children(set, |cursor, item| {
        let card = card(cursor, item)?;
        primary = primary.take().or_else(|| Some(card).filter(Card::is_primary));
        Some(())
    })?;
    Some(primary)
}

fn card<'d>(cursor: &mut Cursor<'d>, item: Tag<'d>) -> Option<Card<'d>> {
    let mut card = Card::default();
    cursor.children(item, |cursor, tag| {
        match tag.name {
            b"attachment" => cursor.children(tag, |cursor, tag| {
                match tag.name {
                    b"deviceIndex" => card.device = Some(cursor.text(tag)?.parse().ok()?),
                    b"networkCardIndex" => card.card = Some(cursor.text(tag)?.parse().ok()?),
                    _ => cursor.skip(tag)?,
                }
                Some(())
            })?,
            b"privateDnsName" => card.private_dns = Some(cursor.text(tag)?),
            b"privateIpAddress" => card.private_ip = Some(cursor.text(tag)?),
            _ => cursor.skip(tag)?,
        }
        Some(())
    })?;
    Some(card)
}

/// Of two tags with the same key the last counts.
fn tags<'d>(cursor: &mut Cursor<'d>, set: Tag<'d>) -> Option<BTreeMap<String, String>> {
    let mut tags = BTreeMap::new();
    cursor.children(set, |cursor, item| {
        if let Some((key, value)) = pair(cursor, item)? {
            tags.insert(key.into_owned(), value.into_owned());
        }
        Some(())
    })?;
    Some(tags)
}

/// A tag; `None` within for one without a key.
#[expect(clippy::option_option, reason = "the outer one is `?` of everything here")]
fn pair<'d>(cursor: &mut Cursor<'d>, item: Tag<'d>) -> Option<Option<(Cow<'d, str>, Cow<'d, str>)>> {
    let (mut key, mut value) = (None, None);
    cursor.children(item, |cursor, tag| {
        match tag.name {
            b"key" => key = Some(cursor.text(tag)?),
            b"value" => value = Some(cursor.text(tag)?),
            _ => cursor.skip(tag)?,
        }
        Some(())
    })?;
    Some(key.map(|key| (key, value.unwrap_or_default())))
}

#[expect(clippy::option_option, reason = "the outer one is `?` of everything here")]
fn state<'d>(cursor: &mut Cursor<'d>, element: Tag<'d>) -> Option<Option<InstanceStateName>> {
    let mut state = None;
    cursor.children(element, |cursor, tag| {
        match tag.name {
            b"name" => state = Some(InstanceStateName::from(&*cursor.text(tag)?)),
            _ => cursor.skip(tag)?,
        }
        Some(())
    })?;
    Some(state)
}

fn time(text: &str) -> Option<DateTime> {
    DateTime::from_str(text, Format::DateTimeWithOffset).ok()
}

#[cfg(test)]
mod tests;

//! EC2's answers in our words: the SDK's structures in, `Instance` and `Failure` out. Takes what is kept and drops the rest:
//! an answer about 500 instances is a megabyte.

use std::borrow::Cow;
use std::collections::BTreeMap;

use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::types::{self, InstanceStateName};
use aws_smithy_types::DateTime;

use super::codes::classify;
use super::sentence::sentence;
use crate::model::failure::Failure;
use crate::model::instance::{Instance, InstanceState};
use crate::model::round::LaunchRequest;
use crate::model::time::Timestamp;

/// What EC2 says of an instance, as far as it is of use, in its own order and words.
#[derive(Debug, Default)]
pub(super) struct Told<'d> {
    pub(super) id: Option<Cow<'d, str>>,
    pub(super) state: Option<InstanceStateName>,
    pub(super) private_ip: Option<Cow<'d, str>>,
    pub(super) private_dns: Option<Cow<'d, str>>,
    /// The primary one of its network interfaces.
    pub(super) card: Option<Card<'d>>,
    pub(super) instance_type: Option<Cow<'d, str>>,
    pub(super) zone: Option<Cow<'d, str>>,
    pub(super) subnet: Option<Cow<'d, str>>,
    pub(super) launch_time: Option<DateTime>,
    pub(super) tags: BTreeMap<String, String>,
}

/// One of an instance's network interfaces. Without a device it is not attached.
#[derive(Debug, Default)]
pub(super) struct Card<'d> {
    pub(super) device: Option<i32>,
    pub(super) card: Option<i32>,
    pub(super) private_ip: Option<Cow<'d, str>>,
    pub(super) private_dns: Option<Cow<'d, str>>,
}

impl Card<'_> {
    /// EC2 lists an instance's interfaces in any order; the one that the host's own address is on has card 0 and device 0.
    pub(super) fn is_primary(&self) -> bool {
        self.device == Some(0) && self.card.unwrap_or_default() == 0
    }
}

impl Told<'_> {
    /// `None` for an entry without an id, which names nothing.
    pub(super) fn instance(self) -> Option<Instance> {
        let id = self.id.filter(|id| !id.is_empty())?;
        let primary = self.card.unwrap_or_default();
        Some(Instance {
            id: id.into_owned(),
            state: self.state.map_or(InstanceState::Unknown, |name| state(&name)),
            private_ip: filled(primary.private_ip).or_else(|| filled(self.private_ip)).map(Cow::into_owned),
            hostname: filled(primary.private_dns).or_else(|| filled(self.private_dns)).map(first_label),
            instance_type: self.instance_type.map(Cow::into_owned),
            zone: self.zone.map(Cow::into_owned),
            subnet: filled(self.subnet).map(Cow::into_owned),
            launch_time: self.launch_time.and_then(|time| u64::try_from(time.secs()).ok()).map(Timestamp::from_secs),
            tags: self.tags,
        })
    }
}

fn filled(text: Option<Cow<'_, str>>) -> Option<Cow<'_, str>> {
    text.filter(|text| !text.is_empty())
}

/// As the SDK has read it.
pub(super) fn instance(from: types::Instance) -> Option<Instance> {
    let card = |card: types::InstanceNetworkInterface| {
        let (device, number) = card.attachment.map_or((None, None), |at| (at.device_index, at.network_card_index));
        let (private_ip, private_dns) = (card.private_ip_address.map(Cow::Owned), card.private_dns_name.map(Cow::Owned));
        Card { device, card: number, private_ip, private_dns }
    };
    let tags = from.tags.unwrap_or_default().into_iter();
    let told = Told {
        id: from.instance_id.map(Cow::Owned),
        state: from.state.and_then(|state| state.name),
        private_ip: from.private_ip_address.map(Cow::Owned),
        private_dns: from.private_dns_name.map(Cow::Owned),
        card: from.network_interfaces.unwrap_or_default().into_iter().map(card).find(Card::is_primary),
        instance_type: from.instance_type.map(|kind| Cow::Owned(kind.as_str().to_owned())),
        zone: from.placement.and_then(|placement| placement.availability_zone).map(Cow::Owned),
        subnet: from.subnet_id.map(Cow::Owned),
        launch_time: from.launch_time,
        tags: tags.filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default()))).collect(),
    };
    told.instance()
}

pub(super) fn state(name: &InstanceStateName) -> InstanceState {
    match name {
        InstanceStateName::Pending => InstanceState::Pending,
        InstanceStateName::Running => InstanceState::Running,
        InstanceStateName::ShuttingDown => InstanceState::ShuttingDown,
        InstanceStateName::Terminated => InstanceState::Terminated,
        InstanceStateName::Stopping => InstanceState::Stopping,
        InstanceStateName::Stopped => InstanceState::Stopped,
        _ => InstanceState::Unknown,
    }
}

fn first_label(name: Cow<'_, str>) -> String {
    match name.split_once('.') {
        Some((label, _)) => label.to_owned(),
        None => name.into_owned(),
    }
}

/// A fleet's instances (ids only; type, subnet and zone as far as told) and its errors.
///
/// A fleet of nothing may be the work of throttling (class `Throttled` among its errors). Its client token is spent all the
/// same: with it EC2 would give the same empty answer again.
pub(super) fn fleet(from: CreateFleetOutput, request: &LaunchRequest, request_id: Option<&str>) -> (Vec<Instance>, Vec<Failure>) {
    let tags: BTreeMap<String, String> = request.tags.iter().cloned().collect();
    let instances: Vec<Instance> =
        from.instances.unwrap_or_default().into_iter().flat_map(|group| fleet_group(group, &tags)).collect();
    let mut errors: Vec<Failure> = Vec::new();
    for error in from.errors.unwrap_or_default() {
        let (code, message) = (error.error_code.unwrap_or_default(), error.error_message.unwrap_or_default());
        let class = classify(&code, None);
        let context = error.launch_template_and_overrides.and_then(|used| used.overrides).map(asked).unwrap_or_default();
        let sentence = sentence(&code, class, &message, &context);
        let failure = Failure { code, class, sentence, request_id: request_id.map(str::to_owned) };
        if !errors.contains(&failure) {
            errors.push(failure);
        }
    }
    (instances, errors)
}

fn fleet_group(group: types::CreateFleetInstance, tags: &BTreeMap<String, String>) -> Vec<Instance> {
    let used = group.launch_template_and_overrides.and_then(|used| used.overrides);
    let (used_subnet, used_zone) = used.map_or((None, None), |used| (used.subnet_id, used.availability_zone));
    let (subnet, zone) = (group.subnet_id.or(used_subnet), group.availability_zone.or(used_zone));
    let instance_type = group.instance_type.map(|kind| kind.as_str().to_owned());
    let one = |id| Instance {
        id,
        state: InstanceState::Pending,
        private_ip: None,
        hostname: None,
        instance_type: instance_type.clone(),
        zone: zone.clone(),
        subnet: subnet.clone(),
        launch_time: None,
        tags: tags.clone(),
    };
    group.instance_ids.unwrap_or_default().into_iter().filter(|id| !id.is_empty()).map(one).collect()
}

/// `c5.large in subnet-1`
fn asked(from: types::FleetLaunchTemplateOverrides) -> String {
    let place = from.subnet_id.or(from.availability_zone);
    match (from.instance_type, place) {
        (Some(kind), Some(place)) => format!("{} in {place}", kind.as_str()),
        (Some(kind), None) => kind.as_str().to_owned(),
        (None, Some(place)) => place,
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use aws_sdk_ec2::types::builders::InstanceNetworkInterfaceBuilder;
    use aws_sdk_ec2::types::{InstanceNetworkInterface, InstanceNetworkInterfaceAttachment};

    use super::*;

    fn card(card: i32, device: i32, ip: &str) -> InstanceNetworkInterface {
        let at = InstanceNetworkInterfaceAttachment::builder().network_card_index(card).device_index(device).build();
        let named = InstanceNetworkInterfaceBuilder::default().private_ip_address(ip);
        named.private_dns_name(format!("ip-{}.ec2.internal", ip.replace('.', "-"))).attachment(at).build()
    }

    #[test]
    fn r24_address_and_name_come_from_the_primary_interface() {
        let cards = [card(1, 1, "10.0.0.9"), card(0, 1, "10.0.0.8"), card(0, 0, "10.0.0.5"), card(1, 0, "10.0.0.7")];
        for turn in 0..cards.len() {
            let mut shuffled = cards.to_vec();
            shuffled.rotate_left(turn);
            let told =
                types::Instance::builder().instance_id("i-1").private_ip_address("10.0.0.9").private_dns_name("ip-10-0-0-9.x");
            let instance = instance(told.set_network_interfaces(Some(shuffled)).build()).unwrap();
            assert_eq!(instance.private_ip.as_deref(), Some("10.0.0.5"));
            assert_eq!(instance.hostname.as_deref(), Some("ip-10-0-0-5"));
        }
    }

    #[test]
    fn without_interfaces_the_top_level_counts_and_empty_is_absent() {
        let told = types::Instance::builder().instance_id("i-1").private_ip_address("10.0.0.9").private_dns_name("");
        let seen = instance(told.build()).unwrap();
        assert_eq!((seen.private_ip.as_deref(), seen.hostname), (Some("10.0.0.9"), None));
        assert_eq!(seen.state, InstanceState::Unknown);
        assert!(instance(types::Instance::builder().build()).is_none());
    }
}

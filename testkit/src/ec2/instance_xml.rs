//! An instance as EC2 prints it in answers to launches and describes.

use std::fmt::Write as _;

use super::instances::{Instance, Machine, State};
use super::xml::{element, escape, time};

/// How much of an instance an answer shows.
#[derive(Clone, Copy)]
pub(crate) struct Show {
    pub(crate) state: State,
    pub(crate) address: bool,
    pub(crate) full: bool,
}

/// Writes one `<item>` of an `instancesSet`.
pub(crate) fn write_instance(out: &mut String, machine: &Machine, show: Show) {
    let i = &machine.seen;
    let gone = matches!(show.state, State::Terminated);
    let address = show.address && !gone;
    let launched = time(i.launch_time_ms);
    let _ = write!(
        out,
        "<item><instanceId>{}</instanceId><imageId>ami-0abcdef1234567890</imageId>\
         <instanceState><code>{}</code><name>{}</name></instanceState><privateDnsName>",
        i.id,
        show.state.code(),
        show.state.name()
    );
    if address {
        out.push_str(&i.hostname);
    }
    let _ = write!(
        out,
        "</privateDnsName><dnsName/><reason/><amiLaunchIndex>{}</amiLaunchIndex><productCodes/>\
         <instanceType>{}</instanceType><launchTime>{launched}</launchTime><placement><availabilityZone>{}\
         </availabilityZone><groupName/><tenancy>default</tenancy></placement>\
         <monitoring><state>disabled</state></monitoring>",
        machine.launch_index,
        escape(&i.instance_type),
        escape(&i.zone)
    );
    if !gone {
        let _ = write!(out, "<subnetId>{}</subnetId><vpcId>vpc-0123456789abcdef0</vpcId>", escape(&i.subnet));
    }
    if address {
        let _ = write!(out, "<privateIpAddress>{}</privateIpAddress>", i.private_ip);
    }
    if show.full {
        write_filler(out, i, &launched, gone);
    }
    element(out, "clientToken", &i.client_token);
    if i.spot {
        out.push_str("<instanceLifecycle>spot</instanceLifecycle>");
    }
    out.push_str("<tagSet>");
    for (key, value) in &i.tags {
        let _ = write!(out, "<item><key>{}</key><value>{}</value></item>", escape(key), escape(value));
    }
    out.push_str("</tagSet><networkInterfaceSet>");
    if !gone {
        write_interfaces(out, machine, &launched, Show { address, ..show });
    }
    out.push_str("</networkInterfaceSet></item>");
}

fn write_interfaces(out: &mut String, machine: &Machine, launched: &str, show: Show) {
    let cards = machine.more_addresses.len() + 1;
    for position in 0..cards {
        let card = if machine.shuffle_cards { cards - 1 - position } else { position };
        let (device, address) = match card {
            0 => (0, machine.seen.private_ip),
            n => (1, machine.more_addresses[n - 1]),
        };
        let ordinal = machine.seen.ordinal;
        let _ = write!(
            out,
            "<item><networkInterfaceId>eni-0{card:02x}{ordinal:014x}</networkInterfaceId><subnetId>{}</subnetId>\
             <vpcId>vpc-0123456789abcdef0</vpcId><status>in-use</status><interfaceType>{}</interfaceType>",
            escape(&machine.seen.subnet),
            if cards > 1 { "efa" } else { "interface" }
        );
        let [a, b, c, d] = address.octets();
        if show.address {
            let _ = write!(out, "<privateIpAddress>{address}</privateIpAddress><privateDnsName>");
            if card == 0 {
                out.push_str(&machine.seen.hostname);
            } else {
                let domain = machine.seen.hostname.split_once('.').map_or("", |(_, d)| d);
                let _ = write!(out, "ip-{a}-{b}-{c}-{d}.{domain}");
            }
            out.push_str("</privateDnsName>");
        }
        if show.full {
            let _ = write!(
                out,
                "<macAddress>02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}\
                 </macAddress><sourceDestCheck>true</sourceDestCheck><groupSet/><privateIpAddressesSet>"
            );
            if show.address {
                let _ = write!(out, "<item><privateIpAddress>{address}</privateIpAddress><primary>true</primary></item>");
            }
            out.push_str("</privateIpAddressesSet>");
        }
        let _ = write!(
            out,
            "<attachment><attachmentId>eni-attach-0{card:02x}{ordinal:014x}</attachmentId>\
             <deviceIndex>{device}</deviceIndex><networkCardIndex>{card}</networkCardIndex><status>attached</status>\
             <attachTime>{launched}</attachTime><deleteOnTermination>true</deleteOnTermination></attachment></item>"
        );
    }
}

/// What EC2 sends and no client here reads; it brings an instance to its real size.
fn write_filler(out: &mut String, i: &Instance, launched: &str, gone: bool) {
    out.push_str("<blockDeviceMapping>");
    if !gone {
        let _ = write!(
            out,
            "<item><deviceName>/dev/xvda</deviceName><ebs><volumeId>vol-0{:016x}</volumeId><status>attaching</status>\
             <attachTime>{launched}</attachTime><deleteOnTermination>true</deleteOnTermination></ebs></item>",
            i.ordinal
        );
    }
    out.push_str(
        "</blockDeviceMapping><sourceDestCheck>true</sourceDestCheck><groupSet><item>\
         <groupId>sg-0123456789abcdef0</groupId><groupName>hpc-compute</groupName></item></groupSet>\
         <architecture>x86_64</architecture><rootDeviceType>ebs</rootDeviceType>\
         <rootDeviceName>/dev/xvda</rootDeviceName><virtualizationType>hvm</virtualizationType>\
         <hypervisor>xen</hypervisor><ebsOptimized>true</ebsOptimized><enaSupport>true</enaSupport><cpuOptions>\
         <coreCount>1</coreCount><threadsPerCore>2</threadsPerCore></cpuOptions><metadataOptions>\
         <state>applied</state><httpTokens>required</httpTokens><httpEndpoint>enabled</httpEndpoint>\
         </metadataOptions>",
    );
}

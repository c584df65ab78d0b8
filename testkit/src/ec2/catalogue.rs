//! Launch templates and subnets: what launches refer to.
//!
//! Every template name exists unless the behaviour says it does not; its id is derived from the name. An id exists
//! once its name has been asked for, when the behaviour lists it, and otherwise as the template `template-ID`.

use std::fmt::Write as _;

use super::behaviour::{Template, parse_cidr};
use super::params::{Params, glob};
use super::state::World;
use super::xml::{ApiError, element, escape, time};

impl World {
    /// The template a request names below `prefix`, and the number of the version it asks for.
    pub(crate) fn template_of(&mut self, prefix: &str, params: &Params) -> Result<Option<(Template, u32)>, ApiError> {
        let name = params.get(&format!("{prefix}.LaunchTemplateName"));
        let id = params.get(&format!("{prefix}.LaunchTemplateId"));
        let template = match (name, id) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                let text = "Either the name or the id of a launch template may be given, not both.";
                return Err(ApiError::client("InvalidParameterCombination", text));
            }
            (Some(name), None) => self.template_by_name(name)?,
            (None, Some(id)) => self.template_by_id(id)?,
        };
        let version = version_number(&template, params.get(&format!("{prefix}.Version")).unwrap_or("$Default"))?;
        Ok(Some((template, version)))
    }

    /// The template of this name, whether or not the behaviour says something about it.
    pub(crate) fn template_named(&self, name: &str) -> Template {
        let listed = self.behaviour.templates.iter().find(|t| t.name == name).cloned();
        let mut template = listed.unwrap_or_else(|| Template { name: name.to_owned(), ..Template::default() });
        if template.id.is_empty() {
            template.id = derived_id(name);
        }
        template
    }

    fn template_by_name(&mut self, name: &str) -> Result<Template, ApiError> {
        if self.behaviour.bad_templates.iter().any(|bad| bad == name) {
            let text = format!("At least one of the launch templates specified in the request does not exist: {name}");
            return Err(ApiError::client("InvalidLaunchTemplateName.NotFoundException", text));
        }
        let template = self.template_named(name);
        self.template_names.insert(template.id.clone(), name.to_owned());
        Ok(template)
    }

    fn template_by_id(&mut self, id: &str) -> Result<Template, ApiError> {
        if !id.strip_prefix("lt-").is_some_and(|hex| !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit())) {
            return Err(ApiError::client("InvalidLaunchTemplateId.Malformed", format!("Invalid id: \"{id}\"")));
        }
        let named = self.behaviour.templates.iter().find(|t| t.id == id || derived_id(&t.name) == id);
        let name = named.map(|t| t.name.clone()).or_else(|| self.template_names.get(id).cloned());
        let bad = |text: &String| self.behaviour.bad_templates.contains(text);
        if bad(&id.to_owned()) || name.as_ref().is_some_and(bad) {
            let text = format!("The launch template ID '{id}' does not exist");
            return Err(ApiError::client("InvalidLaunchTemplateId.NotFound", text));
        }
        match name {
            Some(name) => Ok(self.template_named(&name)),
            None => {
                let name = format!("template-{id}");
                self.template_names.insert(id.to_owned(), name.clone());
                Ok(Template { id: id.to_owned(), ..self.template_named(&name) })
            }
        }
    }

    pub(crate) fn describe_launch_templates(&mut self, params: &Params) -> Result<String, ApiError> {
        let mut templates = Vec::new();
        for name in params.list("LaunchTemplateName") {
            templates.push(self.template_by_name(name)?);
        }
        for id in params.list("LaunchTemplateId") {
            templates.push(self.template_by_id(id)?);
        }
        if templates.is_empty() {
            templates = self.behaviour.templates.iter().map(|t| self.template_named(&t.name)).collect();
        }
        for filter in params.groups("Filter") {
            if filter.get("Name") == Some("launch-template-name") {
                templates.retain(|t| filter.list("Value").iter().any(|v| glob(v, &t.name)));
            }
        }
        let created = time(self.clock.now_ms());
        let mut out = String::from("<launchTemplates>");
        for t in &templates {
            let _ = write!(
                out,
                "<item><launchTemplateId>{}</launchTemplateId><launchTemplateName>{}</launchTemplateName>\
                 <createTime>{created}</createTime><createdBy>arn:aws:iam::123456789012:root</createdBy>\
                 <defaultVersionNumber>{}</defaultVersionNumber><latestVersionNumber>{}</latestVersionNumber></item>",
                t.id,
                escape(&t.name),
                t.default_version,
                t.latest_version
            );
        }
        out.push_str("</launchTemplates>");
        Ok(out)
    }

    pub(crate) fn describe_launch_template_versions(&mut self, params: &Params) -> Result<String, ApiError> {
        let template = match (params.get("LaunchTemplateName"), params.get("LaunchTemplateId")) {
            (Some(name), None) => self.template_by_name(name)?,
            (None, Some(id)) => self.template_by_id(id)?,
            _ => return Err(ApiError::client("MissingParameter", "One of LaunchTemplateName and LaunchTemplateId is needed.")),
        };
        let asked = params.list("LaunchTemplateVersion");
        let numbers: Vec<u32> = match asked.is_empty() {
            true => (1..=template.latest_version).rev().collect(),
            false => asked.iter().map(|v| version_number(&template, v)).collect::<Result<_, _>>()?,
        };
        let created = time(self.clock.now_ms());
        let mut out = String::from("<launchTemplateVersionSet>");
        for number in numbers {
            let _ = write!(
                out,
                "<item><launchTemplateId>{}</launchTemplateId><launchTemplateName>{}</launchTemplateName>\
                 <versionNumber>{number}</versionNumber><createTime>{created}</createTime>\
                 <createdBy>arn:aws:iam::123456789012:root</createdBy><defaultVersion>{}</defaultVersion>\
                 <launchTemplateData>",
                template.id,
                escape(&template.name),
                number == template.default_version
            );
            if let Some(name) = &template.instance_type {
                element(&mut out, "instanceType", name);
            }
            if let Some(subnet) = &template.subnet {
                let _ = write!(
                    out,
                    "<networkInterfaceSet><item><deviceIndex>0</deviceIndex><subnetId>{}</subnetId></item>\
                     </networkInterfaceSet>",
                    escape(subnet)
                );
            }
            out.push_str("<imageId>ami-0abcdef1234567890</imageId></launchTemplateData></item>");
        }
        out.push_str("</launchTemplateVersionSet>");
        Ok(out)
    }

    pub(crate) fn describe_subnets(&mut self, params: &Params) -> Result<String, ApiError> {
        let ids = params.list("SubnetId");
        let mut subnets = match ids.is_empty() {
            true => self.behaviour.subnets.clone(),
            false => ids.iter().map(|id| self.known_subnet(id)).collect::<Result<_, _>>()?,
        };
        for filter in params.groups("Filter") {
            let values = filter.list("Value");
            let any = |text: &str| values.iter().any(|v| glob(v, text));
            match filter.require("Name")? {
                "subnet-id" => subnets.retain(|s| any(&s.id)),
                "availability-zone" | "availabilityZone" => subnets.retain(|s| any(&s.zone)),
                "vpc-id" => subnets.retain(|_| any("vpc-0123456789abcdef0")),
                other => {
                    let text = format!("The filter '{other}' is invalid");
                    return Err(ApiError::client("InvalidParameterValue", text));
                }
            }
        }
        let mut out = String::from("<subnetSet>");
        for s in &subnets {
            let cidr = s.cidr.as_ref().unwrap_or(&self.behaviour.cidr);
            let _ = write!(
                out,
                "<item><subnetId>{}</subnetId><state>available</state><vpcId>vpc-0123456789abcdef0</vpcId>\
                 <cidrBlock>{}</cidrBlock><availableIpAddressCount>{}</availableIpAddressCount>\
                 <availabilityZone>{}</availabilityZone><ownerId>123456789012</ownerId></item>",
                escape(&s.id),
                escape(cidr),
                parse_cidr(cidr).map_or(0, |(_, size)| size),
                escape(&s.zone)
            );
        }
        out.push_str("</subnetSet>");
        Ok(out)
    }
}

fn version_number(template: &Template, asked: &str) -> Result<u32, ApiError> {
    match asked {
        "$Default" => Ok(template.default_version),
        "$Latest" => Ok(template.latest_version),
        number => number.parse().ok().filter(|n| (1..=template.latest_version).contains(n)).ok_or_else(|| {
            let text = format!("Could not find launch template version {number} of {}", template.name);
            ApiError::client("InvalidLaunchTemplateId.VersionNotFound", text)
        }),
    }
}

/// `lt-` and 17 hex digits that depend on the name only (FNV-1a).
fn derived_id(name: &str) -> String {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("lt-{hash:017x}")
}

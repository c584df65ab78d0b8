//! A line of the fault script as a test or a behaviour file writes it. Playing the script is `faults.rs`, carrying
//! effects out `serve.rs`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use super::params::{Params, glob};

/// One line of the script.
///
/// For each request the rules are asked in order. The first one that matches and is due plays its effects; the
/// request is then no business of later rules. So `[error once, drop once]` means: first an error, then a drop.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// `RunInstances`, `TerminateInstances`, … or `*`.
    pub action: String,
    /// Which matching request is the first to be hit, counted from 1 since the rule was given. Default 1.
    pub nth: Option<u32>,
    /// How many are hit. Default: one if `nth` is given, else all.
    pub count: Option<u32>,
    /// Only requests that name this.
    pub when: Match,
    /// What happens: those not `after` in order, the action itself, those `after` in order.
    pub effects: Vec<Effect>,
}

/// Narrows a rule; all given parts must hold. `*` and `?` are wildcards. Only what the request itself carries is seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Launch template, by name or id.
    pub template: Option<String>,
    /// An instance type of the request, an override's included.
    pub instance_type: Option<String>,
    /// A subnet of the request, an override's included.
    pub subnet: Option<String>,
    /// `Key=Value`: a tag that the request puts on something.
    pub tag: Option<String>,
    /// An instance that the request names.
    pub instance: Option<String>,
}

/// A mishap. `after`: the action has been carried out already, its answer is what suffers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Effect {
    /// Answers an EC2 error. After: as with a 5xx from a load balancer, the instances exist.
    Error {
        code: String,
        #[serde(default = "default_status")]
        status: u16,
        #[serde(default)]
        message: String,
        #[serde(default)]
        after: bool,
    },
    /// Waits, then goes on.
    Delay {
        ms: u64,
        #[serde(default)]
        after: bool,
    },
    /// Never answers.
    Hang {
        #[serde(default)]
        after: bool,
    },
    /// Closes the connection without a byte. After: the answer is lost.
    Drop {
        #[serde(default)]
        after: bool,
    },
    /// Carries the action out and sends this instead of the answer.
    Garbage {
        #[serde(default = "default_garbage")]
        body: String,
        #[serde(default = "default_garbage_status")]
        status: u16,
    },
    /// Carries the action out and breaks the connection in the middle of the answer.
    Cut {},
    /// Waits until [`Endpoint::release`](super::Endpoint::release) opens the gate of this name.
    Hold {
        name: String,
        #[serde(default)]
        after: bool,
    },
    /// Creates the file and waits until somebody removes it.
    Hook {
        path: PathBuf,
        #[serde(default)]
        after: bool,
    },
}

fn default_status() -> u16 {
    400
}
fn default_garbage() -> String {
    "<html><body>503 come back later</bo".to_owned()
}
fn default_garbage_status() -> u16 {
    200
}

impl Effect {
    pub(crate) fn is_after(&self) -> bool {
        match self {
            Effect::Error { after, .. }
            | Effect::Delay { after, .. }
            | Effect::Hang { after }
            | Effect::Drop { after }
            | Effect::Hold { after, .. }
            | Effect::Hook { after, .. } => *after,
            Effect::Garbage { .. } | Effect::Cut {} => true,
        }
    }

    fn set_after(&mut self) {
        match self {
            Effect::Error { after, .. }
            | Effect::Delay { after, .. }
            | Effect::Hang { after }
            | Effect::Drop { after }
            | Effect::Hold { after, .. }
            | Effect::Hook { after, .. } => *after = true,
            Effect::Garbage { .. } | Effect::Cut {} => {}
        }
    }
}

impl Rule {
    /// A rule for an action that does nothing yet.
    pub fn on(action: &str) -> Self {
        Rule { action: action.to_owned(), ..Rule::default() }
    }

    /// Only the `n`th matching request (1 = first); with [`times`](Self::times), from that one on.
    #[must_use]
    pub fn nth(mut self, n: u32) -> Self {
        self.nth = Some(n);
        self
    }

    /// Only this many requests.
    #[must_use]
    pub fn times(mut self, n: u32) -> Self {
        self.count = Some(n);
        self
    }

    /// Only requests with this launch template (name or id).
    #[must_use]
    pub fn template(mut self, name: &str) -> Self {
        self.when.template = Some(name.to_owned());
        self
    }

    /// Only requests that name this instance type.
    #[must_use]
    pub fn instance_type(mut self, name: &str) -> Self {
        self.when.instance_type = Some(name.to_owned());
        self
    }

    /// Only requests that name this subnet.
    #[must_use]
    pub fn subnet(mut self, id: &str) -> Self {
        self.when.subnet = Some(id.to_owned());
        self
    }

    /// Only requests that put this tag on something.
    #[must_use]
    pub fn tag(mut self, key: &str, value: &str) -> Self {
        self.when.tag = Some(format!("{key}={value}"));
        self
    }

    /// Only requests that name this instance.
    #[must_use]
    pub fn instance(mut self, id: &str) -> Self {
        self.when.instance = Some(id.to_owned());
        self
    }

    /// Adds any effect.
    #[must_use]
    pub fn effect(mut self, effect: Effect) -> Self {
        self.effects.push(effect);
        self
    }

    /// The effect added last comes after the action has been carried out.
    #[must_use]
    pub fn after(mut self) -> Self {
        if let Some(last) = self.effects.last_mut() {
            last.set_after();
        }
        self
    }

    /// Answers this error.
    #[must_use]
    pub fn error(self, code: &str, status: u16) -> Self {
        self.error_text(code, status, "")
    }

    /// Answers this error with this message.
    #[must_use]
    pub fn error_text(self, code: &str, status: u16, message: &str) -> Self {
        self.effect(Effect::Error { code: code.to_owned(), status, message: message.to_owned(), after: false })
    }

    /// Waits this long, then goes on.
    #[must_use]
    pub fn delay_ms(self, ms: u64) -> Self {
        self.effect(Effect::Delay { ms, after: false })
    }

    /// Never answers.
    #[must_use]
    pub fn hang(self) -> Self {
        self.effect(Effect::Hang { after: false })
    }

    /// Closes the connection before anything is done.
    #[must_use]
    pub fn drop_before(self) -> Self {
        self.effect(Effect::Drop { after: false })
    }

    /// Does it and closes the connection: the answer is lost.
    #[must_use]
    pub fn drop_after(self) -> Self {
        self.effect(Effect::Drop { after: true })
    }

    /// Does it and answers something that is not XML.
    #[must_use]
    pub fn garbage(self) -> Self {
        self.effect(Effect::Garbage { body: default_garbage(), status: default_garbage_status() })
    }

    /// Does it and breaks off in the middle of the answer.
    #[must_use]
    pub fn cut(self) -> Self {
        self.effect(Effect::Cut {})
    }

    /// Stops at the gate `name` until it is released.
    #[must_use]
    pub fn hold(self, name: &str) -> Self {
        self.effect(Effect::Hold { name: name.to_owned(), after: false })
    }

    /// Creates `path` and stops until it has been removed.
    #[must_use]
    pub fn hook(self, path: impl Into<PathBuf>) -> Self {
        self.effect(Effect::Hook { path: path.into(), after: false })
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        if self.action.is_empty() {
            return Err("behaviour: a rule needs an `action` (a name, or `*`)".to_owned());
        }
        if self.nth == Some(0) {
            return Err(format!("behaviour: rule for `{}`: `nth` counts from 1", self.action));
        }
        let status = self.effects.iter().find_map(|e| match e {
            Effect::Error { status, .. } | Effect::Garbage { status, .. } if !(200..600).contains(status) => Some(status),
            _ => None,
        });
        status.map_or(Ok(()), |s| Err(format!("behaviour: rule for `{}`: {s} is no HTTP status", self.action)))
    }
}

impl Match {
    pub(crate) fn holds(&self, params: &Params) -> bool {
        let any = |wanted: &Option<String>, names: &[&str]| match wanted {
            None => true,
            Some(pattern) => params.pairs().iter().any(|(key, value)| {
                let mut parts = key.rsplit('.');
                let mut name = parts.next().unwrap_or_default();
                if name.bytes().all(|b| b.is_ascii_digit()) {
                    name = parts.next().unwrap_or_default();
                }
                names.contains(&name) && glob(pattern, value)
            }),
        };
        any(&self.template, &["LaunchTemplateName", "LaunchTemplateId"])
            && any(&self.instance_type, &["InstanceType"])
            && any(&self.subnet, &["SubnetId"])
            && any(&self.instance, &["InstanceId", "ResourceId"])
            && self.tag.as_ref().is_none_or(|wanted| {
                let specified = params.groups("TagSpecification").into_iter().flat_map(|g| g.tags("Tag"));
                specified.chain(params.tags("Tag")).any(|(k, v)| glob(wanted, &format!("{k}={v}")))
            })
    }
}

//! A node as Slurm shows it: name, addresses, state. The reading of Slurm's text is `slurm/show.rs`'s.

/// One node, as far as we use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlurmNode {
    pub(crate) name: String,
    /// The node's own name when nothing was set.
    pub(crate) addr: String,
    pub(crate) hostname: String,
    /// Only from 23.11 on, and only while set.
    pub(crate) instance_id: Option<String>,
    pub(crate) state: State,
    /// Without Slurm's `[user@time]`; lines joined by a space.
    pub(crate) reason: Option<String>,
    /// When the machine booted, as slurmd told: seconds since 1970. `None` before registration, or when the text is a local time
    /// (asked without `SLURM_TIME_FORMAT=%s`) of a zone that is not known.
    pub(crate) boot_time: Option<u64>,
    pub(crate) slurmd_start_time: Option<u64>,
    pub(crate) partitions: Vec<String>,
    /// The active ones.
    pub(crate) features: Vec<String>,
    /// When a job was last on it, seconds since 1970; Slurm 22.05 and later. `None` where Slurm does not tell or the zone is not known.
    pub(crate) last_busy: Option<u64>,
    /// The reservation that holds it now.
    pub(crate) reservation: Option<String>,
}

#[cfg(test)]
impl SlurmNode {
    /// A node of this state with its own address, of which Slurm shows nothing else.
    pub(crate) fn named(name: &str, state: &str) -> Self {
        Self {
            name: name.to_owned(),
            addr: name.to_owned(),
            hostname: name.to_owned(),
            instance_id: None,
            state: State::parse(state),
            reason: None,
            boot_time: None,
            slurmd_start_time: None,
            partitions: Vec::new(),
            features: Vec::new(),
            last_busy: None,
            reservation: None,
        }
    }
}

/// First word of `State=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Base {
    Idle,
    Allocated,
    Mixed,
    Down,
    Error,
    Future,
    Unknown,
    /// A word that this version does not know.
    Other(String),
}

/// `State=IDLE+CLOUD+POWERED_DOWN`: a base and flags. Flags that are not known here are kept as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) base: Base,
    flags: u32,
    /// Flags of newer Slurm versions, as written.
    pub(crate) unknown: Vec<String>,
}

/// Flag words of `node_state_flag_string` and friends (Slurm, src/common/slurm_protocol_defs.c). Position = bit.
const FLAGS: [&str; 20] = [
    "CLOUD",
    "COMPLETING",
    "DRAIN",
    "DYNAMIC_FUTURE",
    "DYNAMIC_NORM",
    "FAIL",
    "INVALID_REG",
    "MAINTENANCE",
    "POWER_DOWN",
    "POWER_UP",
    "NOT_RESPONDING",
    "POWERED_DOWN",
    "REBOOT_REQUESTED",
    "REBOOT_ISSUED",
    "RESERVED",
    "RESUME",
    "POWERING_DOWN",
    "POWERING_UP",
    "PLANNED",
    "BLOCKED",
];

impl State {
    /// From the text behind `State=`.
    pub(crate) fn parse(text: &str) -> Self {
        let mut words = text.split('+');
        let base = match words.next().unwrap_or_default() {
            "IDLE" => Base::Idle,
            "ALLOCATED" => Base::Allocated,
            "MIXED" => Base::Mixed,
            "DOWN" => Base::Down,
            "ERROR" => Base::Error,
            "FUTURE" => Base::Future,
            "UNKNOWN" => Base::Unknown,
            other => Base::Other(other.to_owned()),
        };
        let mut state = Self { base, flags: 0, unknown: Vec::new() };
        for word in words {
            match FLAGS.iter().position(|flag| *flag == word) {
                Some(bit) => state.flags |= 1 << bit,
                None => state.unknown.push(word.to_owned()),
            }
        }
        state
    }

    /// Is this flag there? Whole words: POWER_DOWN is not part of POWERED_DOWN. Of the many that are asked for a node has two or three, so
    /// those are compared.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.known().any(|known| known == flag) || self.unknown.iter().any(|unknown| unknown == flag)
    }

    /// Flags of our table that are there, in its order.
    fn known(&self) -> impl Iterator<Item = &str> {
        let mut rest = self.flags;
        std::iter::from_fn(move || {
            let flag = FLAGS.get(rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(*flag)
        })
    }

    /// ResumeProgram was called and slurmd has not registered yet.
    pub(crate) fn is_powering_up(&self) -> bool {
        self.has("POWERING_UP")
    }

    /// slurmctld waits for the node to come up, and nobody has asked to power it down meanwhile.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_powering_up() && !self.power_down_requested()
    }

    /// Somebody asked for it, SuspendProgram was not called yet.
    pub(crate) fn power_down_requested(&self) -> bool {
        self.has("POWER_DOWN")
    }

    /// SuspendProgram was called, SuspendTimeout is not over.
    pub(crate) fn is_powering_down(&self) -> bool {
        self.has("POWERING_DOWN")
    }

    pub(crate) fn is_powered_down(&self) -> bool {
        self.has("POWERED_DOWN")
    }

    pub(crate) fn is_down(&self) -> bool {
        self.base == Base::Down
    }
}

impl std::fmt::Display for State {
    /// As Slurm writes it, flags in alphabetical order of our table.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match &self.base {
            Base::Idle => "IDLE",
            Base::Allocated => "ALLOCATED",
            Base::Mixed => "MIXED",
            Base::Down => "DOWN",
            Base::Error => "ERROR",
            Base::Future => "FUTURE",
            Base::Unknown => "UNKNOWN",
            Base::Other(text) => text,
        })?;
        for flag in self.known().chain(self.unknown.iter().map(String::as_str)) {
            write!(f, "+{flag}")?;
        }
        Ok(())
    }
}

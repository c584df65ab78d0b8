//! The fault script being played, and the token buckets: which request meets which mishap. Rules in, effects out.

use super::behaviour::Throttle;
use super::params::{Params, glob};
use super::rules::{Effect, Rule};

/// The script as it is being played.
#[derive(Debug, Default)]
pub(crate) struct Script(Vec<(Rule, u32)>);

impl Script {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        Script(rules.into_iter().map(|r| (r, 0)).collect())
    }

    pub(crate) fn add(&mut self, rules: Vec<Rule>) {
        self.0.extend(rules.into_iter().map(|r| (r, 0)));
    }

    /// The effects this request meets; none: it passes unharmed.
    pub(crate) fn pick(&mut self, action: &str, params: &Params) -> Vec<Effect> {
        for (rule, seen) in &mut self.0 {
            if !glob(&rule.action, action) || !rule.when.holds(params) {
                continue;
            }
            *seen += 1;
            let first = rule.nth.unwrap_or(1);
            let count = rule.count.or(rule.nth.map(|_| 1));
            if *seen >= first && count.is_none_or(|n| *seen - first < n) {
                return rule.effects.clone();
            }
        }
        Vec::new()
    }
}

/// A token bucket in use. Filled by time, in milliseconds.
#[derive(Debug)]
pub(crate) struct Bucket {
    throttle: Throttle,
    tokens: f64,
    at_ms: u64,
}

impl Bucket {
    pub(crate) fn new(throttle: Throttle, now_ms: u64) -> Self {
        Bucket { tokens: throttle.burst, throttle, at_ms: now_ms }
    }

    /// Takes a token; false when there is none. Actions that are not this bucket's always pass.
    pub(crate) fn take(&mut self, action: &str, now_ms: u64) -> bool {
        if !glob(&self.throttle.action, action) {
            return true;
        }
        let passed = now_ms.saturating_sub(self.at_ms) as f64 / 1000.0;
        self.tokens = (self.tokens + passed * self.throttle.per_second).min(self.throttle.burst);
        self.at_ms = now_ms;
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(script: &mut Script, body: &str) -> usize {
        let params = Params::parse(body.as_bytes());
        script.pick(params.get("Action").unwrap_or_default(), &params).len()
    }

    #[test]
    fn rules_play_one_after_the_other() {
        let rules = vec![Rule::on("RunInstances").times(2).hang(), Rule::on("*").nth(2).hang().drop_after()];
        let mut script = Script::new(rules);
        let run: Vec<usize> = (0..6).map(|_| hits(&mut script, "Action=RunInstances")).collect();
        assert_eq!(run, [1, 1, 0, 2, 0, 0]);
    }

    #[test]
    fn a_match_looks_at_what_the_request_names() {
        let mut script = Script::new(vec![
            Rule::on("*").instance_type("c6i.*").subnet("subnet-2").hang(),
            Rule::on("*").tag("node", "c5-1").hang().hang(),
            Rule::on("*").template("hpc").hang().hang().hang(),
            Rule::on("*").instance("i-2").hang().hang().hang().hang(),
        ]);
        let fleet = "Action=CreateFleet&LaunchTemplateConfigs.1.Overrides.1.InstanceType=c6i.large\
                     &LaunchTemplateConfigs.1.Overrides.2.SubnetId=subnet-2";
        assert_eq!(hits(&mut script, fleet), 1);
        assert_eq!(hits(&mut script, "InstanceType=c6i.large"), 0);
        assert_eq!(hits(&mut script, "TagSpecification.1.Tag.1.Key=node&TagSpecification.1.Tag.1.Value=c5-1"), 2);
        assert_eq!(hits(&mut script, "Tag.1.Key=node&Tag.1.Value=c5-1"), 2);
        assert_eq!(hits(&mut script, "LaunchTemplate.LaunchTemplateName=hpc"), 3);
        assert_eq!(hits(&mut script, "InstanceId.1=i-1&InstanceId.2=i-2"), 4);
        assert_eq!(hits(&mut script, "InstanceId.1=i-1&InstanceId.2=i-22"), 0);
    }

    #[test]
    fn a_bucket_empties_and_fills_with_time() {
        let mut bucket = Bucket::new(Throttle::run_instances(), 1000);
        let burst: Vec<bool> = (0..6).map(|_| bucket.take("RunInstances", 1000)).collect();
        assert_eq!(burst, [true, true, true, true, true, false]);
        assert!(bucket.take("DescribeInstances", 1000));
        assert!(!bucket.take("RunInstances", 1499));
        assert!(bucket.take("RunInstances", 1500));
        assert!(!bucket.take("RunInstances", 1500));
    }
}

//! Test support of slurm-ec2. Never shipped.
//!
//! # The EC2 endpoint
//!
//! [`ec2::Endpoint`] speaks the EC2 query protocol on 127.0.0.1, so that the real SDK, or a whole program, can be
//! run against it. What it does well or badly is a value, [`ec2::Behaviour`]; what has happened can be asked afterwards.
//!
//! ```
//! use slurm_ec2_testkit::ec2::{Behaviour, Capacity, Endpoint, InstanceChange, Rule, State};
//! use std::time::Duration;
//!
//! let ec2 = Endpoint::start(Behaviour {
//!     capacity: vec![Capacity::limit("c5.large", "*", 3)],   // at most three of them may live
//!     no_ip_describes: 2,                                     // two describes without an address
//!     rules: vec![
//!         Rule::on("RunInstances").times(1).error("RequestLimitExceeded", 503),
//!         Rule::on("RunInstances").nth(1).hold("launched").after(), // the second one: done, answer held
//!         Rule::on("TerminateInstances").nth(1).drop_after(),       // done, answer lost
//!     ],
//!     ..Behaviour::default()
//! });
//!
//! // … run a program with endpoint_url = ec2.url() and any credentials; kill it when it is exactly here:
//! let there = ec2.wait_held("launched", Duration::from_millis(1));
//! ec2.release("launched");
//!
//! // … and see what is left.
//! assert_eq!(ec2.live_instances().len(), 0);
//! assert_eq!(ec2.count("RunInstances"), 0);
//! for request in ec2.requests_of("RunInstances") {
//!     assert_eq!(request.param("MinCount"), Some("1"));
//! }
//! for instance in ec2.instances() {
//!     ec2.change(&instance.id, InstanceChange { state: Some(State::Terminated), ..InstanceChange::default() });
//! }
//! # assert!(!there);
//! ```
//!
//! - **Rules** ([`ec2::Rule`]) are asked in order, the first that is due takes the request. `nth(n)` hits one request,
//!   `times(n)` the first n, neither: all. Effects play in the order added; `after()` moves the last one behind the
//!   action, where instances exist already and only the answer suffers. Several can be chained:
//!   `Rule::on("RunInstances").nth(1).hook(path).after().drop_after()`.
//! - **A crash test** stops its program at a gate (`hold`, `wait_held`, `release`) or, from another process, at a hook file:
//!   `hook(path)` creates the file and waits until it is removed. A request whose client dies is carried out all the same.
//! - **Ordinals**: instances are counted from 1; `never_ip: vec![2]` and `protected: vec![3]` name them by it, and the id
//!   of the first is `i-0ec20000000000001`.
//! - **Time**: instances boot, end and become visible by their milliseconds; with 0 the launch answer still says `pending`
//!   and the next look `running`. Launch times in answers are whole seconds, cut off, as EC2's are.
//! - **Client tokens**: the same request again answers the same reservation with today's states; other parameters
//!   `IdempotentParameterMismatch`; all its instances ended `IdempotentInstanceTerminated`. Tokens are known per zone
//!   if the request or its template names a subnet, else per region.
//! - **From another process**: the program `fake-ec2 PORT [BEHAVIOUR.json]` and its paths `/_control/…`, listed in
//!   `ec2/control.rs`. The JSON has the same names; an effect is `{"kind": "error", "code": "…", "status": 503}`,
//!   other kinds are `delay {ms}`, `hang`, `drop`, `garbage`, `cut`, `hold {name}`, `hook {path}`, each but garbage and cut
//!   with `"after": true` if wanted.
//!
//! ```json
//! {"subnets": [{"id": "subnet-1", "zone": "eu-west-1a"}],
//!  "capacity": [{"instance_type": "c5.large", "subnet": "subnet-1", "limit": 3}],
//!  "throttle": [{"action": "RunInstances", "burst": 5, "per_second": 2}],
//!  "latency": {"base_ms": 1500, "per_instance_ms": 5},
//!  "rules": [{"action": "RunInstances", "nth": 2, "when": {"template": "hpc-c5"},
//!             "effects": [{"kind": "hook", "path": "/tmp/here", "after": true}, {"kind": "drop", "after": true}]}]}
//! ```
//! - **Not modelled**: weights of fleets, fleets other than instant, EBS, the resource token bucket, authorization.
//!   A signature must be there; it is not verified.

//! # DynamoDB and Route 53
//!
//! [`dynamodb::Endpoint`] and [`route53::Endpoint`] are the same for what the programs ask of these two: items by key with
//! conditions and transactions, and changes of A records. Their rules are EC2's. Beside them each has its own ways to be
//! difficult: unprocessed items and actions that a role may not do; a pace, records that are refused, changes that must not
//! overlap.
//!
//! ```
//! use slurm_ec2_testkit::dynamodb::{self, Table};
//! use slurm_ec2_testkit::ec2::Rule;
//! use slurm_ec2_testkit::route53::{self, Zone};
//!
//! let dynamodb = dynamodb::Endpoint::start(dynamodb::Behaviour {
//!     tables: vec![Table::new("parallelcluster-slurm-orchard", "Id").only(&["PutItem", "BatchWriteItem", "GetItem", "BatchGetItem"])],
//!     unprocessed_percent: 20,
//!     latency_ms: 8,
//!     rules: vec![Rule::on("BatchWriteItem").times(2).error("ThrottlingException", 400)],
//!     ..dynamodb::Behaviour::default()
//! });
//! let route53 = route53::Endpoint::start(route53::Behaviour {
//!     zones: vec![Zone::new("Z0123456789", "orchard.pcluster.")],
//!     refused: vec!["apple-dy-core-7.orchard.pcluster.".into()],
//!     rules: vec![Rule::on("ChangeResourceRecordSets").times(2).error("PriorRequestNotComplete", 400)],
//!     ..route53::Behaviour::default()
//! });
//! // … run a program with dynamodb_endpoint_url = dynamodb.url() and route53_endpoint_url = route53.url() …
//! assert!(dynamodb.items("parallelcluster-slurm-orchard").is_empty());
//! assert!(route53.records("Z0123456789").is_empty() && route53.requests().is_empty());
//! ```

//! # Instance metadata
//!
//! [`imds::Endpoint`] is what an instance asks about itself: version 2 alone, texts by path, tokens that fail or run out.

pub mod dynamodb;
pub mod ec2;
mod host;
mod http;
pub mod imds;
pub mod route53;

pub use host::Request as ServiceRequest;

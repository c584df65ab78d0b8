//! EC2's complaint for the job's owner: code, message and what was asked in, one plain sentence out (without the code).

use super::codes::{self, bare};
use crate::model::failure::{ErrorClass, codes as own};

/// Characters kept of EC2's own words.
const MAX_WORDS: usize = 180;

/// One sentence without a full stop. `context` says what was asked ("group c5, template hpc-c5"); it may be empty.
pub(crate) fn sentence(code: &str, class: ErrorClass, message: &str, context: &str) -> String {
    let said = words(message);
    let what = if context.is_empty() { String::new() } else { format!(" for {context}") };
    match bare(code) {
        "VcpuLimitExceeded" => match number_after(message, "limit of ") {
            Some(limit) => format!("the account's limit of {limit} vCPUs for this kind of instance is reached{what}"),
            None => format!("the account's vCPU limit for this kind of instance is reached{what}"),
        },
        "InsufficientFreeAddressesInSubnet" => format!("the subnet has no free addresses left{what}"),
        "SpotMaxPriceTooLow" => format!("the spot price is above the configured max_price{what}"),
        "MaxSpotInstanceCountExceeded" => format!("the account's limit of spot instances is reached{what}"),
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted" => {
            "the credentials in use lack the permission iam:CreateServiceLinkedRole for spot.amazonaws.com, \
             which the account's first spot launch needs"
                .into()
        }
        "UnauthorizedOperation" => unauthorized(message, &said),
        "RequestExpired" | "RequestTimeTooSkewed" => {
            "EC2 refused the request's time; check this machine's clock and the age of its credentials".into()
        }
        codes::NO_CREDENTIALS => format!("no AWS credentials{}", after_colon(&said)),
        own::CONFIGURATION => format!("EC2 cannot be called{}", after_colon(&said)),
        own::UNREACHABLE => format!("EC2 did not answer{}", after_colon(&said)),
        code => by_class(code, class, &said, &what),
    }
}

fn by_class(code: &str, class: ErrorClass, said: &str, what: &str) -> String {
    let rest = after_colon(said);
    match class {
        ErrorClass::Capacity => format!("EC2 has no capacity now{what}"),
        ErrorClass::Quota => format!("a limit of the account is reached{what}{rest}"),
        ErrorClass::Split => format!("too many instances for one launch call{what}{rest}"),
        ErrorClass::Throttled => "EC2 takes no more requests from this account at the moment".into(),
        ErrorClass::Transient | ErrorClass::Ambiguous => format!("EC2 had a fault of its own{rest}"),
        ErrorClass::ZoneOrType => format!("this instance type cannot be had in this zone{what}{rest}"),
        ErrorClass::Reservation => format!("the capacity reservation cannot be used now{what}{rest}"),
        ErrorClass::Configuration => format!("EC2 refused the launch as configured{what}{rest}"),
        ErrorClass::Identity => format!("EC2 refused the credentials in use{rest}"),
        ErrorClass::TokenSpent => format!("the launch was already used up{what}{rest}"),
        ErrorClass::Other if said.is_empty() => {
            format!("EC2 answered {}{what}", if code.is_empty() { "with an error" } else { code })
        }
        ErrorClass::Other => format!("EC2 said{what}{rest}"),
    }
}

/// IAM's text, reduced to permission and resource; the encoded blob behind it is for `aws sts decode-authorization-message`.
fn unauthorized(message: &str, said: &str) -> String {
    let Some((_, tail)) = message.split_once("not authorized to perform: ") else {
        return format!("the credentials in use lack a permission{}", after_colon(said));
    };
    let mut tail_words = tail.split_whitespace();
    let action = tail_words.next().unwrap_or("?").trim_end_matches(['.', ',']);
    let resource = tail.split_once("on resource: ").and_then(|(_, rest)| rest.split_whitespace().next());
    match resource {
        Some(resource) => {
            format!("the credentials in use lack the permission {action} on {}", resource.trim_end_matches(['.', ',']))
        }
        None => format!("the credentials in use lack the permission {action}"),
    }
}

/// EC2's words: one line, first sentence, no encoded blob, bounded.
fn words(message: &str) -> String {
    let message = message.split("Encoded authorization failure message").next().unwrap_or_default();
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let first = line.split_once(". ").map_or(line.as_str(), |(first, _)| first).trim_end_matches('.');
    match first.char_indices().nth(MAX_WORDS) {
        Some((cut, _)) => format!("{}...", &first[..cut]),
        None => first.to_owned(),
    }
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

fn number_after(message: &str, words: &str) -> Option<String> {
    let (_, tail) = message.split_once(words)?;
    let digits: String = tail.chars().take_while(|c| c.is_ascii_digit() || *c == ',').collect();
    let digits = digits.trim_end_matches(',');
    (!digits.is_empty()).then(|| digits.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::codes::classify;
    use super::*;

    fn of(code: &str, message: &str, context: &str) -> String {
        sentence(code, classify(code, None), message, context)
    }

    #[test]
    fn the_vcpu_limit_is_named() {
        let message = "You have requested more vCPU capacity than your current vCPU limit of 1,152 allows for the instance bucket \
                       that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request.";
        assert_eq!(
            of("VcpuLimitExceeded", message, "group c5"),
            "the account's limit of 1,152 vCPUs for this kind of instance is reached for group c5"
        );
    }

    #[test]
    fn r27_the_missing_permission_is_named() {
        let text =
            of("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "The provided credentials do not have permission.", "");
        assert!(text.contains("iam:CreateServiceLinkedRole"), "{text}");
    }

    #[test]
    fn an_encoded_blob_never_reaches_the_owner() {
        let message = "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/head/i-0 is not authorized \
                       to perform: ec2:RunInstances on resource: arn:aws:ec2:eu-west-1:1:instance/* because no identity-based policy \
                       allows the ec2:RunInstances action. Encoded authorization failure message: aBcD1234";
        assert_eq!(
            of("UnauthorizedOperation", message, "group c5"),
            "the credentials in use lack the permission ec2:RunInstances on arn:aws:ec2:eu-west-1:1:instance/*"
        );
        let short = of(
            "UnauthorizedOperation",
            "You are not authorized to perform this operation. Encoded authorization failure message: aBcD1234",
            "",
        );
        assert_eq!(short, "the credentials in use lack a permission: You are not authorized to perform this operation");
    }

    #[test]
    fn every_class_gives_one_bounded_line() {
        let message = format!("first\nline {} second", "long ".repeat(200));
        for code in [
            "InsufficientInstanceCapacity",
            "InstanceLimitExceeded",
            "Throttling",
            "InternalError",
            "Unsupported",
            "New",
            "Blocked",
        ] {
            let text = of(code, &message, "group c5");
            assert!(!text.is_empty() && !text.contains('\n') && text.len() < 300, "{code}: {text}");
        }
        assert_eq!(of("InsufficientInstanceCapacity", &message, "group c5"), "EC2 has no capacity now for group c5");
        assert_eq!(of("New", "", "group c5"), "EC2 answered New for group c5");
    }
}

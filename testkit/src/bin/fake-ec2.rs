//! `fake-ec2 PORT [BEHAVIOUR.json]`: the EC2 endpoint as a program. Prints its URL once it listens and runs until it is
//! killed. Port 0 takes a free one.

use slurm_ec2_testkit::ec2::{Behaviour, Endpoint};
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;

const USAGE: &str = "usage: fake-ec2 PORT [BEHAVIOUR.json]\n\n\
    Serves a fault-injecting EC2 on 127.0.0.1:PORT (0: any free port) and prints its URL.\n\
    Control: GET /_control/state, /_control/live; POST /_control/behaviour, rules, release, instance, reservation, seed, reset.\n";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["-h" | "--help"] => {
            let _ = std::io::stdout().write_all(USAGE.as_bytes());
            ExitCode::SUCCESS
        }
        [port] => run(port, None),
        [port, file] => run(port, Some(file)),
        _ => fail(2, USAGE),
    }
}

fn run(port: &str, file: Option<&str>) -> ExitCode {
    let Ok(port) = port.parse::<u16>() else {
        return fail(2, &format!("fake-ec2: `{port}` is not a port number\n{USAGE}"));
    };
    let behaviour = match file {
        None => Ok(Behaviour::default()),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|e| e.to_string())
            .and_then(|text| Behaviour::from_json(&text))
            .map_err(|e| format!("fake-ec2: {path}: {e}\n")),
    };
    let behaviour = match behaviour {
        Ok(behaviour) => behaviour,
        Err(why) => return fail(78, &why),
    };
    match Endpoint::start_on(SocketAddr::from(([127, 0, 0, 1], port)), behaviour) {
        Err(error) => fail(75, &format!("fake-ec2: cannot listen on {error}\n")),
        Ok(endpoint) => {
            // Nobody may be reading; the endpoint serves all the same.
            let _ = writeln!(std::io::stdout(), "{}", endpoint.url());
            let _ = std::io::stdout().flush();
            loop {
                std::thread::park();
            }
        }
    }
}

fn fail(status: u8, text: &str) -> ExitCode {
    let _ = std::io::stderr().write_all(text.as_bytes());
    ExitCode::from(status)
}

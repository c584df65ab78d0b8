//! moto, a server that acts like AWS: EC2, DynamoDB and Route 53 at one address.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub struct Moto {
    server: Child,
    pub port: u16,
}

impl Moto {
    pub fn start() -> Self {
        let program = std::env::var_os("SLURM_EC2_MOTO_SERVER")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/moto_server"), PathBuf::from);
        assert!(program.exists(), "{} is not there: `make deps` installs it", program.display());
        for _ in 0..20 {
            let port = free_port();
            let server = Command::new(&program)
                .args(["-H", "127.0.0.1", "-p", &port.to_string()])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut moto = Self { server, port };
            if moto.listens() {
                return moto;
            }
        }
        panic!("moto ends before it listens, on 20 ports");
    }

    /// Waits for it. False: it has ended, most likely since somebody else has taken the port meanwhile.
    fn listens(&mut self) -> bool {
        let begun = Instant::now();
        loop {
            if self.server.try_wait().unwrap().is_some() {
                return false;
            }
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "moto does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// One EC2 call by hand; the answer's text.
    pub fn call(&self, form: &str) -> String {
        let body = format!("{form}&Version=2016-11-15");
        self.ask("POST", "/", "ec2", "Content-Type: application/x-www-form-urlencoded\r\n", &body)
    }

    /// One DynamoDB call by hand.
    pub fn dynamodb(&self, action: &str, input: &str) -> String {
        let target = format!("X-Amz-Target: DynamoDB_20120810.{action}\r\nContent-Type: application/x-amz-json-1.0\r\n");
        self.ask("POST", "/", "dynamodb", &target, input)
    }

    /// One Route 53 call by hand.
    pub fn route53(&self, method: &str, path: &str, body: &str) -> String {
        self.ask(method, path, "route53", "Content-Type: text/xml\r\n", body)
    }

    fn ask(&self, method: &str, path: &str, service: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\
             Authorization: AWS4-HMAC-SHA256 Credential=A/20260101/eu-west-1/{service}/aws4_request, SignedHeaders=host, Signature=0\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
        answer
    }
}

/// A port that is free now, that no other test has got and that the kernel gives to nobody who asks for any: moto cannot be asked to
/// choose one.
fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let port = fastrand::u16(20_000..32_000);
        if GIVEN.lock().unwrap().insert(port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

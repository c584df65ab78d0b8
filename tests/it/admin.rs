//! slurm-ec2 by hand.

use slurm_ec2_testkit::ec2::Behaviour;

use crate::site::Site;

#[test]
fn d01_check_names_what_slurm_conf_lacks() {
    let site = Site::new(Behaviour::default());
    let ran = site.run("slurm-ec2", &["check"]);
    assert_eq!(ran.code, Some(78), "{}", ran.stderr);
    for word in
        ["ResumeProgram", "SuspendProgram", "ResumeFailProgram", "SuspendTime", "idle_on_node_suspend", "2000 nodes of group c5"]
    {
        assert!(ran.stderr.contains(word), "{word} is not named in {}", ran.stderr);
    }
    assert!(!ran.stderr.contains("ResumeTimeout"), "{}", ran.stderr);
    site.write(
        "slurm.conf",
        "ResumeProgram=/a\nSuspendProgram=/b\nResumeFailProgram=/c\nSuspendTime=300\nResumeTimeout=600\n\
         SlurmctldParameters=idle_on_node_suspend,power_save_interval=1\nNodeName=c5-[1-2000] State=CLOUD\n",
    );
    let ran = site.run("slurm-ec2", &["check"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    // Slurm 22.05 hides powered-off nodes.
    site.scontrol("version", "22.05.8");
    let ran = site.run("slurm-ec2", &["check"]);
    assert!(ran.code == Some(78) && ran.stderr.contains("PrivateData=cloud"), "{}", ran.stderr);
}

#[test]
fn d01_check_looks_at_this_machine_too() {
    let site = Site::new(Behaviour::default());
    site.write(
        "slurm.conf",
        "ResumeProgram=/a\nSuspendProgram=/b\nResumeFailProgram=/c\nSuspendTime=300\nResumeTimeout=600\n\
         SlurmctldParameters=idle_on_node_suspend\nNodeName=c5-[1-2000] State=CLOUD\n",
    );
    let text = std::fs::read_to_string(site.path("slurm-ec2.toml")).unwrap();
    site.write(
        "slurm-ec2.toml",
        &text.replace("[slurm]\n", &format!("[slurm]\nsudo = \"{}\"\n", site.path("bin/sudo").display())),
    );
    let sudo = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bin/sudo");
    std::os::unix::fs::symlink(sudo, site.path("bin/sudo")).unwrap();
    let ran = site.run("slurm-ec2", &["check"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    // sudo's refusal comes with the line that is missing.
    site.write("bin/sudo.refuse", "sudo: a password is required\n");
    let ran = site.run("slurm-ec2", &["check"]);
    assert!(ran.code == Some(78) && ran.stderr.contains("sudoers needs a line such as"), "{}", ran.stderr);
    std::fs::remove_file(site.path("bin/sudo.refuse")).unwrap();
    // Another user's state folder. Only root can give one away.
    std::fs::create_dir(site.path("state")).unwrap();
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(site.path("state"), Some(64_030), Some(64_030)).unwrap();
        site.write("slurm.conf", &(std::fs::read_to_string(site.path("slurm.conf")).unwrap() + "SlurmUser=daemon\n"));
        let ran = site.run("slurm-ec2", &["check"]);
        assert_eq!(ran.code, Some(78), "{}", ran.stderr);
        for part in ["daemon (uid 1) cannot write in the state folder", "belongs to uid 64030", "install -d -o daemon -g daemon"]
        {
            assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
        }
        std::fs::remove_dir(site.path("state")).unwrap();
        let ran = site.run("slurm-ec2", &["check"]);
        assert!(ran.code == Some(78) && ran.stderr.contains("is missing, and daemon (uid 1) may not make it"), "{}", ran.stderr);
        // The log, which root made.
        std::fs::create_dir(site.path("state")).unwrap();
        std::os::unix::fs::chown(site.path("state"), Some(1), Some(1)).unwrap();
        let ran = site.run("slurm-ec2", &["check"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stderr.contains("warning: the log folder ") && ran.stderr.contains("belongs to uid 0"), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    }
}

#[test]
fn host_lists_by_hand() {
    let site = Site::new(Behaviour::default());
    let ran = site.run("slurm-ec2", &["expand", "c5-[08-10],gpu"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "c5-08\nc5-09\nc5-10\ngpu\n"));
    let ran = site.run("slurm-ec2", &["compress", "n3,n1,n2"]);
    assert_eq!(ran.stdout, "n[3,1-2]\n");
    let ran = site.run("slurm-ec2", &["compress", "--sorted", "n3", "n1,n2"]);
    assert_eq!(ran.stdout, "n[1-3]\n");
    let ran = site.run("slurm-ec2", &["expand", "n[3-1]"]);
    assert!(ran.code == Some(2) && ran.stdout.is_empty() && ran.stderr.contains("n[3-1]"), "{}", ran.stderr);
    let ran = site.run("slurm-ec2", &["expand", "--limit", "9", "n[1-10]"]);
    assert!(ran.code == Some(2) && ran.stderr.contains('9'), "{}", ran.stderr);
}

#[test]
fn plan_shows_and_does_nothing() {
    let site = Site::new(Behaviour::default());
    let ran = site.run("slurm-ec2", &["plan", "c5-[1-600],other"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stdout.contains("launch     500  c5-[1-500]") && ran.stdout.contains("launch     100  c5-[501-600]"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("other") && ran.stdout.contains("no [[group]]"), "{}", ran.stdout);
    assert!(site.ec2.requests().is_empty() && site.scontrol_calls().is_empty());
    assert!(!site.path("state").exists(), "a plan makes no state folder");
}

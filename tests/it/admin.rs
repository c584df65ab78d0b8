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

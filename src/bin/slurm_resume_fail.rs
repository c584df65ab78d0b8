fn main() -> std::process::ExitCode {
    slurm_ec2::resume_fail_main()
}

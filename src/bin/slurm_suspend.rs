fn main() -> std::process::ExitCode {
    slurm_ec2::suspend_main()
}

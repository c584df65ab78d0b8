fn main() -> std::process::ExitCode {
    slurm_ec2::admin_main()
}

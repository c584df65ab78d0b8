fn main() -> std::process::ExitCode {
    slurm_ec2::computemgtd_main()
}

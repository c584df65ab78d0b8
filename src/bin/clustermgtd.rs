fn main() -> std::process::ExitCode {
    slurm_ec2::clustermgtd_main()
}

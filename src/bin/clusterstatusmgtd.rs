fn main() -> std::process::ExitCode {
    slurm_ec2::clusterstatusmgtd_main()
}

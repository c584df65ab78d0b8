fn main() -> std::process::ExitCode {
    slurm_ec2::fleet_status_manager_main()
}

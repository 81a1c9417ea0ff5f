output "policies" {
  description = "The policies by role. The brokers' instance role gets the agent's."
  value       = { for role, policy in aws_iam_policy.role : role => policy.arn }
}

output "settings" {
  description = "Lines for server.properties: terraform output -raw settings"
  value = join("\n", [
    "remote.log.wal.storage.manager.class.name=plugin.${local.kind == "s3" ? "s3.S3" : "s3_express.S3Express"}WalStorageManager",
    "rsm.wal.config.region=${var.region}",
    length(local.buckets) == 1
    ? "rsm.wal.config.bucket=${values(local.buckets)[0].bucket}"
    : "remote.wal.buckets=${join(",", [for zone, bucket in local.buckets : "${zone}=${bucket.bucket}"])}",
    "",
  ])
}

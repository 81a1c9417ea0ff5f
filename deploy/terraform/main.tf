# Buckets for combined segments, the policies of those who use them, and the VPC's endpoint.
# The policies' statements are those of ../aws, so `remote-wal deploy write DIRECTORY` writes both.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.40"
    }
  }
}

locals {
  kind    = length(var.zones) > 0 ? "s3express" : "s3"
  roles   = local.kind == "s3" ? ["agent", "reader", "janitor"] : ["agent", "reader"]
  buckets = merge(aws_s3_directory_bucket.wal, { for bucket in aws_s3_bucket.wal : "all" => bucket })
  arns    = [for bucket in local.buckets : bucket.arn]
  keys    = compact([var.kms_key_arn])
  resources = { # by the statement's Sid
    Sessions = local.arns
    Bucket   = local.arns
    List     = local.arns
    Objects  = [for arn in local.arns : "${arn}/*"]
    Encrypt  = local.keys
    Decrypt  = local.keys
  }
}

resource "aws_s3_directory_bucket" "wal" {
  for_each = var.zones
  bucket   = "${var.name}--${each.key}--x-s3"
  location {
    name = each.key
  }
}

# Versioning stays off, and there is no life-cycle rule: agents delete what has expired.
resource "aws_s3_bucket" "wal" {
  count  = local.kind == "s3" ? 1 : 0
  bucket = var.name
  tags   = var.tags
}

resource "aws_s3_bucket_public_access_block" "wal" {
  count                   = length(aws_s3_bucket.wal)
  bucket                  = aws_s3_bucket.wal[0].bucket
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# Directory buckets are never public, and are asked over TLS alone.
resource "aws_s3_bucket_policy" "tls" {
  count  = length(aws_s3_bucket.wal)
  bucket = aws_s3_bucket.wal[0].bucket
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OnlyByTls"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [local.arns[0], "${local.arns[0]}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })
}

resource "aws_s3_bucket_server_side_encryption_configuration" "wal" {
  for_each = var.kms_key_arn == null ? {} : local.buckets
  bucket   = each.value.bucket
  rule {
    bucket_key_enabled = true
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = var.kms_key_arn
    }
  }
}

resource "aws_iam_policy" "role" {
  for_each = toset(local.roles)
  name     = "${var.name}-${each.key}"
  tags     = var.tags
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      for statement in jsondecode(file("${path.module}/../aws/${local.kind}-${each.key}.json")).Statement :
      merge(statement, { Resource = local.resources[statement.Sid] }) if length(local.resources[statement.Sid]) > 0
    ]
  })
}

# Without it, requests leave the VPC by a NAT gateway, which bills every byte.
resource "aws_vpc_endpoint" "wal" {
  vpc_id            = var.vpc_id
  service_name      = "com.amazonaws.${var.region}.${local.kind}"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = var.route_table_ids
  tags              = var.tags
}

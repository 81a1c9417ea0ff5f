variable "name" {
  description = "The bucket's name, or its beginning for directory buckets."
  type        = string
}

variable "region" {
  type = string
}

variable "zones" {
  description = "Ids of the zones that get a directory bucket (S3 Express), such as use1-az4. None: one standard bucket."
  type        = set(string)
  default     = []
}

variable "kms_key_arn" {
  description = "The key that encrypts objects. None: S3's own."
  type        = string
  default     = null
}

variable "vpc_id" {
  description = "The VPC of the brokers."
  type        = string
}

variable "route_table_ids" {
  description = "Route tables of the brokers' subnets."
  type        = set(string)
}

variable "tags" {
  description = "Of the standard bucket, the policies and the endpoint."
  type        = map(string)
  default     = {}
}

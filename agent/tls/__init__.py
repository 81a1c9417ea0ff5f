"""Keys and certificates: `broker_tls` for the broker, from `key_stores`; `certificates` watches how long they last."""

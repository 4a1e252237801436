"""The contract: generated messages and the typed client. grpcio and protobuf only."""

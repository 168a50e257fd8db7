// A client in Go, made from the .proto files and docs/ alone, and a server by Go's own DRPC library
// (see ../client_program.py).
module millrace.dev

go 1.24.0

require (
	github.com/klauspost/compress v1.18.0
	github.com/pierrec/lz4/v4 v4.1.22
	google.golang.org/grpc v1.72.1
	google.golang.org/protobuf v1.36.5
	storj.io/drpc v1.0.0
)

require (
	github.com/zeebo/errs v1.4.0 // indirect
	golang.org/x/net v0.35.0 // indirect
	golang.org/x/sys v0.30.0 // indirect
	golang.org/x/text v0.22.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250218202821-56aae31c358a // indirect
	google.golang.org/grpc/cmd/protoc-gen-go-grpc v1.5.1 // indirect
)

tool (
	google.golang.org/grpc/cmd/protoc-gen-go-grpc
	google.golang.org/protobuf/cmd/protoc-gen-go
	storj.io/drpc/cmd/protoc-gen-go-drpc
)

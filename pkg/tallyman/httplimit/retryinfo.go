package httplimit

import (
	"encoding/base64"
	"encoding/binary"
	"time"
)

// statusDetails is Grpc-Status-Details-Bin of a call that can be made again after a
// time: a google.rpc.Status with a google.rpc.RetryInfo. The few bytes are written by
// hand, so that applications that know nothing of gRPC do not link its libraries.
func statusDetails(code uint64, message string, retryAfter time.Duration) string {
	var delay []byte // google.protobuf.Duration
	delay = appendInteger(delay, 1, uint64(retryAfter/time.Second))
	delay = appendInteger(delay, 2, uint64(retryAfter%time.Second))
	var detail []byte // google.protobuf.Any
	detail = appendBytes(detail, 1, []byte("type.googleapis.com/google.rpc.RetryInfo"))
	detail = appendBytes(detail, 2, appendBytes(nil, 1, delay))
	var status []byte
	status = appendInteger(status, 1, code)
	status = appendBytes(status, 2, []byte(message))
	status = appendBytes(status, 3, detail)
	return base64.RawStdEncoding.EncodeToString(status)
}

// The types of fields on Protocol Buffers' wire.
const (
	wireInteger = 0
	wireBytes   = 2
)

func appendInteger(b []byte, field, n uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, field<<3|wireInteger), n)
}

func appendBytes(b []byte, field uint64, value []byte) []byte {
	b = binary.AppendUvarint(b, field<<3|wireBytes)
	return append(binary.AppendUvarint(b, uint64(len(value))), value...)
}

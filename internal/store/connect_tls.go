package store

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
)

// TLSOptions refine the TLS of rediss:// URLs. They are an error with others.
// The files are PEM; what they hold never becomes part of an error.
type TLSOptions struct {
	// CAFile has the certificates of the authorities that may have signed the
	// server's, or CA is their text; the system's if both are empty. The file is
	// read once.
	CAFile, CA string
	// CertFile and KeyFile are the client's certificate and key, for servers
	// that ask for one. Both or none are set. They are read again for each
	// connection, so that a renewed certificate needs no restart.
	CertFile, KeyFile string
	// ServerName is the name that the server's certificate must have, where it
	// is not the URL's host. It holds for all nodes of a Redis Cluster, and for
	// Sentinels and the servers they name alike.
	ServerName string
}

// apply sets up the configuration that go-redis made of the URL, which is nil
// for a URL without TLS.
func (o TLSOptions) apply(config *tls.Config) error {
	if o == (TLSOptions{}) {
		return nil
	}
	if config == nil {
		return errors.New("the store's TLS options (CA file, certificate, key, server name) need a URL with TLS: " +
			"write rediss://, rediss+cluster:// or rediss+sentinel://, or remove the options")
	}
	if o.ServerName != "" {
		config.ServerName = o.ServerName
	}
	if err := o.trust(config); err != nil {
		return err
	}
	return o.identify(config)
}

func (o TLSOptions) trust(config *tls.Config) error {
	what, text := "CA", o.CA
	switch {
	case o.CAFile == "" && o.CA == "":
		return nil
	case o.CAFile != "" && o.CA != "":
		return errors.New("the store's CA file and its CA say both whom to trust: give one of them")
	case config.InsecureSkipVerify:
		return errors.New("the store's CA is of no use with skip_verify in the URL: remove one of them")
	case isPEM(o.CAFile):
		return errNotAPath
	case o.CAFile != "":
		file, err := os.ReadFile(o.CAFile)
		if err != nil {
			return fmt.Errorf("read the store's CA file: %w", err)
		}
		what, text = "CA file "+o.CAFile, string(file)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM([]byte(text)) {
		return fmt.Errorf("the store's %s has no certificate: give PEM text with BEGIN CERTIFICATE blocks", what)
	}
	return nil
}

func (o TLSOptions) identify(config *tls.Config) error {
	switch {
	case o.CertFile == "" && o.KeyFile == "":
		return nil
	case o.CertFile == "":
		return errors.New("the store's key file is set without a certificate file: give both or none")
	case o.KeyFile == "":
		return errors.New("the store's certificate file is set without a key file: give both or none")
	case isPEM(o.CertFile) || isPEM(o.KeyFile):
		return errNotAPath
	}
	if _, err := o.keyPair(); err != nil {
		return err
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return o.keyPair() }
	return nil
}

func (o TLSOptions) keyPair() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("load the store's certificate file %s and key file %s: %w", o.CertFile, o.KeyFile, err)
	}
	return &pair, nil
}

var errNotAPath = errors.New("a TLS option of the store has the text of a PEM file: give the path of the file")

// isPEM tells a PEM text, which must not be shown, from the path of a file.
func isPEM(path string) bool { return strings.Contains(path, "-----BEGIN") }

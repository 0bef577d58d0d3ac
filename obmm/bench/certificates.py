# SPDX-License-Identifier: Apache-2.0
"""TLS certificates for tests and benchmarks, made when they are needed (package cryptography)."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from obmm.exchange import TlsFiles

DAY = datetime.timedelta(days=1)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: str, issuer: str, public_key: ec.EllipticCurvePublicKey, until: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 10 * DAY)
        .not_valid_after(now + until)
    )


def _signs_certificates() -> x509.KeyUsage:
    others = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False, **dict.fromkeys(others, False)
    )


@dataclass
class Authority:
    """A certificate authority in a folder."""

    folder: Path
    name: str = "test authority"

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(self.name, self.name, self.key.public_key(), DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_signs_certificates(), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        self.path = self.folder / f"{self.name.replace(' ', '-')}.pem"
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, common: str, until: datetime.timedelta = DAY, *, alternatives: list[x509.GeneralName] | None = None
    ) -> TlsFiles:
        """A certificate for ``common``, good for 127.0.0.1 and localhost, with its key in a file of mode 0600.

        ``alternatives`` replaces its other names.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        names = [x509.DNSName(common), *here] if alternatives is None else alternatives
        certificate = (
            _builder(common, self.name, key.public_key(), until)
            .add_extension(x509.SubjectAlternativeName(names or here[1:]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        chain = self.folder / f"{common}.pem"
        chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = self.folder / f"{common}.key"
        fd = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as file:
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
            )
        return TlsFiles(chain, private, self.path)

    def revoke(self, *revoked: TlsFiles) -> Path:
        """A file with this authority's list of revoked certificates."""
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(_name(self.name)).last_update(now - DAY)
        for files in revoked:
            serial = x509.load_pem_x509_certificate(Path(files.certificate).read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - DAY).build()
            builder = builder.add_revoked_certificate(entry)
        path = self.folder / "revoked.pem"
        made = builder.next_update(now + DAY).sign(self.key, hashes.SHA256())
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return path
